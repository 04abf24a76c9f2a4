"""A server without a master: one process that binds, loads, serves and handles its own signals.

So do `--debug` and `tailrace.run` with one worker. A worker of a master is in `main`.

Thread: the main thread, or the one that calls `tailrace.run`. Elsewhere than on the main thread signals are left to the
embedding program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tailrace._tailrace import Server
from tailrace.cli import load
from tailrace.cli.settings import Settings, warn_of_no_effect
from tailrace.errors import ConfigError
from tailrace.logs import log, log_formats
from tailrace.system import forks, identity, signals, sockets
from tailrace.system.pidfile import pid_file
from tailrace.worker import certificates, core, debug, hooks
from tailrace.worker.announce import announce, loading
from tailrace.worker.prepare import prepared
from tailrace.worker.warmup import warm_up

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def serve(resolved: Settings, application: WSGIApplication | None = None) -> bool:
    """Serves until a signal ends it. False when requests still run that did not finish in time.

    application: None: the one that `app` names is loaded.
    Raises ConfigError, LoadError, BindError, StartError, ServerError; and KeyboardInterrupt with `debug`.
    """
    warn_of_no_effect(resolved, has_master=False)
    settings = resolved.effective
    log_formats.set_worker(1)
    log.allow_thread()
    if settings.debug and threading.current_thread() is not threading.main_thread():
        raise ConfigError("debug = True: the application runs on the main thread, so call this function there")
    info = hooks.WorkerInfo(1, os.getpid(), 1)
    with prepared(settings) as ready, pid_file(settings.pidfile) as paths, certificates.followed(ready.certificates):
        settings, listeners = ready.settings, ready.listeners
        sockets.keep_from_children(listeners, inherited=settings.app is not None)
        identity.change_user(settings.user, settings.group, settings.access_log, listeners, paths)
        ready.variables.apply()
        # Only with `debug`: otherwise hooks have a master.
        found = hooks.read(settings.hooks)
        found.on_start()
        if application is None:
            with loading(settings):
                application = load.load(settings.app or "", factory=settings.factory)
            log.revive()
        found.worker_start(info)
        warm_up(application, settings)
        application = found.around(application, gevent=False)
        found.follow()
        server = core.make(application, settings, listeners, holds=ready.holding)

        def begin() -> None:
            # With signals handled already: a reader of these lines may send a signal at once.
            announce(settings, application, listeners)
            for listener in listeners:
                listener.hand_over()

        if settings.debug:
            stop = debug.MainThreadStop(server, settings.graceful_timeout)
            with signals.handled({signal.SIGINT: stop, signal.SIGTERM: stop}):
                begin()
                debug.run_here(server, stop)
            found.worker_stop(info, stop.left())
        else:
            _run(server, settings.graceful_timeout, begin)
        core.check(server)
        found.on_exit()
        log.logger.info("stopped")
        return not core.abandoned(server)


def _run(server: Server, graceful_timeout: float, begin: Callable[[], None]) -> None:
    """Pool threads serve; this thread waits for signals and for the end. begin: called once signals are handled."""
    reader, writer = signals.wakeup_sockets()
    # Python allows no handlers on another thread than the main one.
    is_main = threading.current_thread() is threading.main_thread()
    woken = signals.woken(writer, (*STOP_SIGNALS, signal.SIGUSR1)) if is_main else contextlib.nullcontext()
    with reader, writer:
        forks.keep_from_children(reader, writer)
        with woken:
            begin()
            with core.starting():
                server.start()
                end = threading.Thread(
                    target=core.announce_end, args=(server, writer), name="tailrace-end", daemon=True
                )
                end.start()
            stops, counted = 0, signals.Stops()
            while True:
                number, at = signals.arrived(reader)
                if number == core.ENDED:
                    break
                if number in STOP_SIGNALS and counted.counts(number, at):
                    stops += 1
                    core.begin_stop(server, graceful_timeout if stops == 1 else 0.0, number)
                elif number == signal.SIGUSR1:
                    core.reopen_logs(server)
            server.join()
