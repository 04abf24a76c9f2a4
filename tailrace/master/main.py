"""A server with a master: from the settings to the exit status.

Thread: the main thread, the only one of the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from tailrace.cli import load
from tailrace.cli.envfile import Variables
from tailrace.cli.settings import Settings, plain, warn_of_no_effect
from tailrace.greenlets import patch
from tailrace.master.loop import Master
from tailrace.master.service import Service
from tailrace.process import binds, descriptors, directory, folders, log, log_config, signals, sockets
from tailrace.process.errors import ConfigError
from tailrace.worker import hooks
from tailrace.worker.announce import announce_loading
from tailrace.worker.main import WorkerSetup

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


def serve(settings: Settings, application: WSGIApplication | None = None, surroundings: Service | None = None) -> int:
    """Serves with worker processes until a signal ends it; the exit status.

    application: None: the one that `settings["app"]` names is loaded, here with --preload, else by each worker.
    surroundings: what `service.from_environment` has found. Raises ConfigError, BindError, LoadError; and
    KeyboardInterrupt before the workers are forked.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("worker processes are forked from the main thread: call this function there")
    warn_of_no_effect(settings, has_master=True)
    log_config.warn_of_threads()
    if settings["gevent"].value:
        patch.check()
    try:
        with _terminable() as stops:
            return _serve(plain(settings), application, Service() if surroundings is None else surroundings, stops)
    except _Terminated:
        return 0


def _serve(chosen: dict[str, Any], application: WSGIApplication | None, service: Service, stops: signals.Stops) -> int:
    if chosen["debug"] or chosen["reload"]:
        chosen["workers"] = 1
    wanted = binds.parse_all(chosen["bind"])
    descriptors.open_standard()
    named = None if application is not None else directory.named(chosen["chdir"])
    if chosen["chdir"] is not None:
        directory.change(chosen["chdir"])
    chosen |= folders.located(chosen, named)
    chosen["access_log"] = chosen["access_log"] and log.located(chosen["access_log"], named)
    if chosen["umask"] is not None:
        os.umask(chosen["umask"])
    variables = Variables(chosen["env_file"])
    with service:
        with sockets.bound(
            wanted, backlog=chosen["backlog"], socket_mode=chosen["socket_mode"], kept=service.kept
        ) as listeners:
            # The sockets are bound first: clients may connect while the application loads, and wait in the backlog.
            service.settle(chosen, listeners)
            found = hooks.read(chosen["hooks"])
            if application is None and chosen["preload"]:
                variables.apply()
                announce_loading(chosen)
                application = _preloaded(chosen)
            setup = WorkerSetup(application, named, found, variables)
            return Master(chosen, listeners, setup, service, stops).run()


class _Terminated(KeyboardInterrupt):
    """SIGTERM came before the loop runs. A KeyboardInterrupt, since applications do not catch that while they load."""


@contextlib.contextmanager
def _terminable() -> Iterator[signals.Stops]:
    """Before the loop and after it, SIGTERM raises _Terminated, so that files such as those of sockets are removed."""

    stops = signals.Stops()

    def terminated(number: int, frame: FrameType | None) -> None:
        if stops.counts(number, time.time()):
            raise _Terminated

    # These do nothing yet. They may come early from log rotation or a deployment, since the pid file may exist already.
    early = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
    with signals.handled({**dict.fromkeys(early, signals.ignore), signal.SIGTERM: terminated}):
        yield stops


def _preloaded(chosen: dict[str, Any]) -> WSGIApplication:
    """Loads the application in the master, for --preload. Raises LoadError and KeyboardInterrupt."""
    application = load.load(chosen["app"], factory=chosen["factory"])
    log.revive()
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        log.logger.warning(
            "--preload: the application has started threads (%s), which do not exist in the workers; start them in the "
            "hook post_fork",
            ", ".join(others),
        )
    return application
