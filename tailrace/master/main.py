"""A server with a master: from the settings to the exit status.

Thread: the main thread, the only one of the process.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import Settings, warn_of_no_effect
from tailrace.errors import ConfigError
from tailrace.greenlets import patch
from tailrace.logs import log_config
from tailrace.master.loop import Master
from tailrace.master.service import Service
from tailrace.system import directory, signals
from tailrace.worker import hooks
from tailrace.worker.main import WorkerSetup
from tailrace.worker.prepare import prepared

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


def serve(settings: Settings, application: WSGIApplication | None = None, service: Service | None = None) -> int:
    """Serves with worker processes until a signal ends it; the exit status.

    application: None: the one that `settings["app"]` names is loaded, by a mold with --preload, else by each worker.
    service: what `service.from_environment` has found. Raises ConfigError, BindError, LoadError; and
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
            return _serve(settings.effective, application, service or Service(), stops)
    except _Terminated:
        return 0


def _serve(
    settings: ServerSettings, application: WSGIApplication | None, service: Service, stops: signals.Stops
) -> int:
    named = None if application is not None else directory.named(settings.chdir)
    with service, prepared(settings, named=named, has_status=True, kept=service.kept) as found:
        settings, listeners = found.settings, found.listeners
        service.set_up(settings, listeners, found.certificates, found.variables)
        functions = hooks.read(settings.hooks)
        setup = WorkerSetup(application, named, functions, found.variables)
        return Master(settings, listeners, setup, service, stops).run()


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
