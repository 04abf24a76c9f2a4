"""One serving process: listeners, application, core, signals, and the way out.

`serve` is a process of its own, as with `--debug` and in an embedding program; `work` is a worker that a master
forked. A worker ends by SIGTERM (what is in flight is finished), SIGQUIT (at once), or because its master is gone. More
SIGTERMs change nothing: a service manager may send one to every process beside the master's.

Thread: everything here runs on the main thread, except `_announce_end`, which waits for the core and says so.

Signals: the kernel may deliver a signal to any thread, and a thread inside the application may hold the interpreter
for long. So Python's wake-up descriptor, not a Python handler, wakes the main thread, and the signal mask stays as it
was, since the children of an application would inherit it.
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
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from penstock import identity, load, log, options, service, sockets, watch, workers
from penstock._penstock import Server, __version__
from penstock.errors import ConfigError, PenstockError
from penstock.hooks import Hooks, WorkerInfo
from penstock.service import Variables
from penstock.settings import Settings, plain
from penstock.workers import Failure

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from penstock._penstock import Scoreboard

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# What the master takes care of; a terminal or a service manager may send them to its workers, too. They have handlers
# instead of being ignored, since the children of the application would inherit that.
_THE_MASTERS: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
# How long the application's own threads may take to end until the log names them (seconds).
_PATIENCE: Final = 1.0
_ENDED: Final = 0  # not a signal number: the core has stopped

Handler = Callable[[int, "FrameType | None"], object]


def serve(settings: Settings, application: WSGIApplication | None = None) -> bool:
    """Serves until a signal ends it. False when requests still run that did not finish in time.

    application: the application; without it, the one that `settings["app"]` names is loaded.
    Raises ConfigError, LoadError, BindError; and KeyboardInterrupt with `debug`.
    """
    chosen = plain(settings)
    if chosen["debug"] and threading.current_thread() is not threading.main_thread():
        raise ConfigError("debug = True: the application runs on the main thread, so call this from there")
    addresses = [sockets.parse(text) for text in chosen["bind"]]
    if chosen["chdir"] is not None:
        change_directory(chosen["chdir"])
    if chosen["umask"] is not None:
        os.umask(chosen["umask"])
    variables = Variables(chosen["env_file"])
    with sockets.bound(addresses, backlog=chosen["backlog"], socket_mode=chosen["socket_mode"]) as listeners:
        # Addresses first: clients may already connect, and wait in the backlog, while the application loads.
        service.change_user(chosen, listeners, [])
        variables.apply()
        if application is None:
            application = load.load(chosen["app"], factory=chosen["factory"])
            log.revive()
        server = core(application, chosen, listeners)
        announce(chosen, application, listeners)
        for listener in listeners:
            listener.hand_over()
        if chosen["debug"]:
            _run_here(server, chosen["graceful_timeout"])
        else:
            _run(server, chosen["graceful_timeout"])
        log.logger.info("stopped")
        return not _abandoned(server)


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
            leave(0)
        # Again: the application may have handlers of its own.
        _listen_to((signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1), writer)
        server.start()
        threading.Thread(target=_announce_end, args=(server, writer), name="penstock-end", daemon=True).start()
        ready = True
        _report(station, workers.READY)
        _attend(server, reader, station.leash, chosen["graceful_timeout"])
        finished = not _abandoned(server)
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
        leave(status)


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
    server = core(application, chosen, listeners, station.scoreboard)
    for listener in listeners:
        listener.hand_over()
    return server


def _enter(directory: str) -> None:
    """Goes into a directory by its name, which may have been given to another one since the master's start: a
    deployment turns a symbolic link. The path of modules follows."""
    before = os.getcwd()
    change_directory(directory)
    after = os.getcwd()
    if after != before:
        sys.path[:] = [after if entry == before else entry for entry in sys.path]


def _listen_to(numbers: Collection[signal.Signals], writer: socket.socket) -> None:
    """The numbers of these signals, and of those that are the master's, arrive at the other end of `writer`."""
    for number in (*numbers, *_THE_MASTERS):
        signal.signal(number, ignore)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)


def _report(station: Station, said: bytes) -> None:
    # Without a master there is nobody to tell; the leash will say so.
    with contextlib.suppress(BrokenPipeError):
        while said:
            said = said[os.write(station.report, said) :]
    os.close(station.report)


def _attend(server: Server, reader: socket.socket, leash: int, graceful_timeout: float) -> None:
    """Waits for the end of the core, and for reasons to end it."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(leash, select.POLLIN)
    stopping = False
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == leash:
                poll.unregister(leash)
                log.logger.warning(
                    "the master is gone: finishing the requests in flight, for up to %g s", graceful_timeout
                )
                numbers = bytes((signal.SIGTERM,))
            else:
                numbers = reader.recv(64)
            if signal.SIGQUIT in numbers:
                server.stop(0.0)
            elif signal.SIGTERM in numbers and not stopping:
                stopping = True
                server.stop(graceful_timeout)
            if signal.SIGUSR1 in numbers:
                _reopen_logs(server)
            if _ENDED in numbers:
                server.join()
                return


def _work_here(server: Server, leash: int, graceful_timeout: float) -> None:
    """A worker of `--debug --reload`: the application on the main thread. Ctrl-C reaches the worker, too."""

    def watch_leash() -> None:
        os.read(leash, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch_leash, name="penstock-leash", daemon=True).start()
    with handled({signal.SIGQUIT: lambda number, frame: server.stop(0.0)}), contextlib.suppress(KeyboardInterrupt):
        _run_here(server, graceful_timeout)


def _abandoned(server: Server) -> int:
    """How many requests still run that did not finish in time; says so."""
    if abandoned := server.stats()["running"]:
        log.logger.warning("%d requests did not finish in time", abandoned)
    return abandoned


def leave(status: int) -> NoReturn:
    """Ends the process without finalising the interpreter, for when `serve` has left requests running.

    Before Python 3.14 a thread that still runs during finalisation is ended by unwinding its stack, which the frames of
    the core do not survive: the process would abort.
    """
    atexit.unregister(leave)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def core(
    application: WSGIApplication,
    chosen: dict[str, Any],
    listeners: list[sockets.Listener],
    scoreboard: tuple[Scoreboard, int] | None = None,
) -> Server:
    """The core for these option values. scoreboard: with the worker's place in it. Raises ConfigError."""
    descriptors = [listener.socket.fileno() for listener in listeners]
    try:
        return Server(application, options.core_settings(chosen), descriptors, scoreboard)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"cannot start: {error}") from None


def _run(server: Server, graceful_timeout: float) -> None:
    """Pool threads serve, the main thread waits for signals and for the end."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        with _signals(writer):
            server.start()
            threading.Thread(target=_announce_end, args=(server, writer), name="penstock-end", daemon=True).start()
            stops = 0
            while (numbers := reader.recv(64)) and _ENDED not in numbers:
                for number in numbers:
                    if number in STOP_SIGNALS:
                        stops += 1
                        _stop(server, graceful_timeout if stops == 1 else 0.0, number)
                    elif number == signal.SIGUSR1:
                        _reopen_logs(server)
            server.join()


def _announce_end(server: Server, writer: socket.socket) -> None:
    server.join()
    # The main thread has left, and closed the socket, if an exception ended it.
    with contextlib.suppress(OSError):
        writer.setblocking(True)
        writer.send(bytes((_ENDED,)))


def _stop(server: Server, graceful_timeout: float, number: int) -> None:
    name = signal.Signals(number).name
    if graceful_timeout > 0:
        log.logger.info(
            "%s: finishing the requests in flight, for up to %g s; a second signal stops at once",
            name,
            graceful_timeout,
        )
    else:
        log.logger.info("%s: stopping now", name)
    server.stop(graceful_timeout)


def _reopen_logs(server: Server) -> None:
    try:
        server.reopen_logs()
    except OSError as error:
        log.logger.error("SIGUSR1: the access log cannot be reopened: %s", error)
    else:
        log.logger.info("SIGUSR1: access log reopened")


def _run_here(server: Server, graceful_timeout: float) -> None:
    """The application on the main thread, where `pdb` can talk to the terminal; the core looks for signals itself."""

    def stop(number: int, frame: FrameType | None) -> None:
        _stop(server, graceful_timeout, number)

    handlers: dict[signal.Signals, Handler] = {
        # Also where whoever started us ignores it, as a shell does for its background jobs.
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: stop,
        signal.SIGUSR1: lambda number, frame: _reopen_logs(server),
    }
    with handled(handlers):
        try:
            server.run_here()
        finally:
            server.stop(0.0)


@contextlib.contextmanager
def _signals(writer: socket.socket) -> Iterator[None]:
    """The numbers of our signals arrive as bytes at the other end of `writer`. Elsewhere than on the main thread,
    where Python takes no handlers, signals stay the business of the program that embeds us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled(dict.fromkeys((*STOP_SIGNALS, signal.SIGUSR1), ignore)):
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous)


@contextlib.contextmanager
def handled(handlers: dict[signal.Signals, Handler]) -> Iterator[None]:
    """These handlers, and at the end those of before."""
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            # None: the handler was not installed from Python, and cannot be put back.
            if handler is not None:
                signal.signal(number, handler)


def ignore(number: int, frame: FrameType | None) -> None:
    """A handler written in Python must exist for the wake-up descriptor to be written."""


def change_directory(directory: str) -> None:
    """Raises ConfigError."""
    try:
        os.chdir(directory)
    except OSError as error:
        raise ConfigError(f"chdir {directory!r}: {error.strerror}") from None


def announce(
    chosen: dict[str, Any], application: WSGIApplication | None, listeners: list[sockets.Listener], workers: int = 0
) -> None:
    """Says in the log who serves what, and where. workers: how many a master has; 0 without a master."""
    if not log.logger.isEnabledFor(logging.INFO):
        return
    name = chosen["app"] or getattr(application, "__qualname__", None) or type(application).__name__
    crew = f" with {workers} worker{'s' * (workers > 1)}" if workers else ""
    log.logger.info("penstock %s, process %d, serves %s%s", __version__, os.getpid(), name, crew)
    if chosen["debug"]:
        log.logger.info(
            "debug: one request at a time on the main thread, breakpoint() works here, tracebacks go to the browser"
        )
    for listener in listeners:
        log.logger.info(
            "listening on %s%s", listener.url, " and every other address of this machine" * listener.everywhere
        )
