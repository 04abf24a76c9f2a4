"""One worker: a process that a master forked, from the fork to its end.

It loads the application, serves, and reports once. It ends by SIGTERM (what is in flight is finished), SIGQUIT (at
once), or because its master is gone. More SIGTERMs change nothing: a service manager may send one to every process
beside the master's. Nothing returns into the master's code: a worker ends as a child of multiprocessing does.

Thread: the main thread, as in `worker`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from penstock import identity, load, log, sockets, watch, worker, workers
from penstock._penstock import Server
from penstock.errors import PenstockError
from penstock.hooks import Hooks, WorkerInfo
from penstock.service import Variables
from penstock.workers import Failure

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from penstock._penstock import Scoreboard

# What the master takes care of; a terminal or a service manager may send them to its workers, too. They have handlers
# instead of being ignored, since the children of the application would inherit that.
_THE_MASTERS: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
_SERVING: Final = (signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1)
# How long the application's own threads may take to end until the log names them (seconds).
_PATIENCE: Final = 1.0


@dataclass(frozen=True)
class Outfit:
    """What all workers of a master are made from.

    application: None when each loads it. directory: where to load it, by the name that the operator uses; None when it
    is loaded.
    """

    application: WSGIApplication | None
    directory: str | None
    hooks: Hooks
    variables: Variables


@dataclass(frozen=True)
class Station:
    """What one worker has from its master.

    report: the pipe to say that it is ready. leash: a pipe that ends when the master is gone. mask: the signal mask to
    go back to.
    """

    info: WorkerInfo
    outfit: Outfit
    scoreboard: tuple[Scoreboard, int]
    report: int
    leash: int
    mask: Collection[int]


def work(station: Station, chosen: dict[str, Any], listeners: list[sockets.Listener]) -> NoReturn:
    """A worker, from its fork to its end: nothing returns into the master's code.

    Exit status: 0 when it was told to end, 3 when it could not load, else 1.
    """
    # What was registered before the fork is the master's to call, as with multiprocessing.
    atexit._clear()
    atexit.register(logging.shutdown)
    if "multiprocessing.util" in sys.modules:
        atexit.register(sys.modules["multiprocessing.util"]._exit_function)
    status, finished, ready = 1, False, False
    try:
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        # Until it serves there is nothing to finish: SIGTERM simply ends it. What else comes is kept in the socket.
        _listen_to((signal.SIGQUIT, signal.SIGUSR1), writer)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, station.mask)
        server = _prepare(station, chosen, listeners)
        if chosen["debug"]:
            ready = True
            _report(station, workers.READY)
            _work_here(server, station.leash, chosen["graceful_timeout"])
            worker.leave(0)
        # Again: the application may have handlers of its own.
        _listen_to(_SERVING, writer)
        ending = _Ending(server, chosen["graceful_timeout"])
        _start(server, writer, chosen, ending)
        ready = True
        _report(station, workers.READY)
        _attend(server, reader, station.leash, ending)
        finished = not worker.abandoned(server)
        status = 0
    except PenstockError as error:
        status = workers.CANNOT_LOAD
        _report(station, Failure(str(error), error.exit_status, getattr(error, "user_traceback", "")).report())
    except BaseException as error:
        if ready:
            log.logger.exception("worker %d fails", station.info.number)
        else:
            _report(station, Failure(f"the worker failed: {error!r}", 1, traceback.format_exc()).report())
    try:
        if finished:
            _wait_for_threads()
    finally:
        worker.leave(status)


class _Ending:
    """How this worker is told to end. Also called by handlers of signals."""

    def __init__(self, server: Server, graceful_timeout: float) -> None:
        self.graceful_timeout = graceful_timeout
        self._server = server
        self._drains = False
        self.has_ended = False

    def drain(self, *_signal: object) -> None:
        """What is in flight is finished. Told again, the time that it has stays the same."""
        if not self._drains:
            self._drains = True
            self._server.stop(self.graceful_timeout)

    def stop(self, *_signal: object) -> None:
        """At once."""
        self._server.stop(0.0)


def _start(server: Server, writer: socket.socket, chosen: dict[str, Any], ending: _Ending) -> None:
    """Serves. Its end is said at the other end of `writer`."""
    if not chosen["gevent"]:
        server.start()
        threading.Thread(target=worker.announce_end, args=(server, writer), name="penstock-end", daemon=True).start()
        return
    from penstock.greenlets import descriptors, dump, hub

    descriptors.allow(chosen["max_greenlets"])
    hub.keep_running()

    def on_end() -> None:
        ending.has_ended = True
        # Full of signals that nobody has looked at, it wakes `_attend` all the same.
        with contextlib.suppress(BlockingIOError):
            writer.send(bytes((worker.ENDED,)))

    hub.Carriers(server, chosen["hub_warn"], on_end).start()
    # Not only by way of `_attend`, which runs in a greenlet: a handler also interrupts one that keeps the hub.
    worker.handle(signal.SIGTERM, ending.drain)
    worker.handle(signal.SIGQUIT, ending.stop)
    worker.handle(signal.SIGURG, lambda number, frame: dump.dump())


def _wait_for_threads() -> None:
    """As the interpreter does at its end: waits for threads of the application that are no daemons, and for what its
    executors have still to do."""

    def say() -> None:
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        names = ", ".join(thread.name for thread in others if not thread.daemon)
        log.logger.info("waiting for threads of the application: %s", names)

    late = threading.Timer(_PATIENCE, say)
    late.daemon = True
    late.start()
    threading._shutdown()  # type: ignore[attr-defined]
    late.cancel()


def _prepare(station: Station, chosen: dict[str, Any], listeners: list[sockets.Listener]) -> Server:
    """The core with the application, not started. Raises PenstockError."""
    outfit, application = station.outfit, station.outfit.application
    identity.set_title(f"worker {station.info.number}", chosen["app"] or "")
    try:
        outfit.variables.apply()
        if chosen["gevent"]:
            from penstock.greenlets import patch

            # The variables may say which loop; the hook may replace drivers by cooperative ones.
            patch.apply()
        outfit.hooks.post_fork(station.info)
        if application is None:
            if outfit.directory is not None:
                _enter(outfit.directory)
            application = load.load(chosen["app"], factory=chosen["factory"])
            log.revive()
        outfit.hooks.worker_ready(station.info)
    except PenstockError as error:
        if not chosen["reload"]:
            raise
        log.revive()
        log.logger.error("%s\n%s", error, getattr(error, "user_traceback", "").rstrip())
        application = watch.broken(error)
    server = worker.core(application, chosen, listeners, station.scoreboard)
    for listener in listeners:
        listener.hand_over()
    return server


def _enter(directory: str) -> None:
    """Goes into a directory by its name, which may have been given to another one since the master's start: a
    deployment turns a symbolic link. The path of modules follows."""
    before = os.getcwd()
    worker.change_directory(directory)
    after = os.getcwd()
    if after != before:
        sys.path[:] = [after if entry == before else entry for entry in sys.path]


def _listen_to(numbers: Collection[signal.Signals], writer: socket.socket) -> None:
    """The numbers of these signals, and of those that are the master's, arrive at the other end of `writer`."""
    # In this order, or a signal between the two would be lost.
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in (*numbers, *_THE_MASTERS):
        signal.signal(number, worker.ignore)


def _report(station: Station, said: bytes) -> None:
    # Without a master there is nobody to tell; the leash will say so.
    with contextlib.suppress(BrokenPipeError):
        while said:
            said = said[os.write(station.report, said) :]
    os.close(station.report)


def _attend(server: Server, reader: socket.socket, leash: int, ending: _Ending) -> None:
    """Waits for the end of the core, and for reasons to end it.

    With `--gevent` poll is gevent's: the hub runs meanwhile, and while a greenlet keeps it nothing is noticed here but
    what has handlers of its own.
    """
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(leash, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == leash:
                poll.unregister(leash)
                log.logger.warning(
                    "the master is gone: finishing the requests in flight, for up to %g s", ending.graceful_timeout
                )
                numbers = bytes((signal.SIGTERM,))
            else:
                numbers = reader.recv(64)
            if signal.SIGQUIT in numbers:
                ending.stop()
            elif signal.SIGTERM in numbers:
                ending.drain()
            if signal.SIGUSR1 in numbers:
                worker.reopen_logs(server)
            if worker.ENDED in numbers or ending.has_ended:
                server.join()
                return


def _work_here(server: Server, leash: int, graceful_timeout: float) -> None:
    """A worker of `--debug --reload`: the application on the main thread. Ctrl-C reaches the worker, too."""

    def watch_leash() -> None:
        os.read(leash, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch_leash, name="penstock-leash", daemon=True).start()
    with (
        worker.handled({signal.SIGQUIT: lambda number, frame: server.stop(0.0)}),
        contextlib.suppress(KeyboardInterrupt),
    ):
        worker.run_here(server, graceful_timeout)
