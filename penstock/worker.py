"""One serving process: listeners, application, core, signals, and the way out.

`serve` is a process of its own, as with `--debug` and in an embedding program; a master's worker is in `station`.

Thread: everything here runs on the main thread, except `announce_end`, which waits for the core and says so.

Signals: the kernel may deliver a signal to any thread, and a thread inside the application may hold the interpreter
for long. So Python's wake-up descriptor, not a Python handler, wakes the main thread, and the signal mask stays as it
was, since the children of an application would inherit it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from penstock import load, log, options, service, sockets
from penstock._penstock import Server, __version__
from penstock.errors import ConfigError
from penstock.service import Variables
from penstock.settings import Settings, plain

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from penstock._penstock import Scoreboard

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
ENDED: Final = 0  # not a signal number: the core has stopped

Handler = Callable[[int, "FrameType | None"], object]


def serve(settings: Settings, application: WSGIApplication | None = None) -> bool:
    """Serves until a signal ends it. False when requests still run that did not finish in time.

    application: the application; without it, the one that `settings["app"]` names is loaded.
    Raises ConfigError, LoadError, BindError; and KeyboardInterrupt with `debug`.
    """
    chosen = plain(settings)
    if chosen["gevent"]:
        from penstock.greenlets import patch

        patch.check(settings)
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
            run_here(server, chosen["graceful_timeout"])
        else:
            _run(server, chosen["graceful_timeout"])
        log.logger.info("stopped")
        return not abandoned(server)


def abandoned(server: Server) -> int:
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
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def core(
    application: WSGIApplication,
    chosen: dict[str, Any],
    listeners: list[sockets.Listener],
    scoreboard: tuple[Scoreboard, int] | None = None,
) -> Server:
    """The core for these option values. scoreboard: with the worker's place in it. Raises ConfigError."""
    if not (chosen["gevent"] or chosen["debug"]) and _threads_are_greenlets():
        raise ConfigError(
            "the standard library has been patched for gevent, so the server's threads would be greenlets and never "
            "run: start with --gevent (in a program of your own: penstock.gevent.serve)"
        )
    descriptors = [listener.socket.fileno() for listener in listeners]
    try:
        return Server(application, options.core_settings(chosen), descriptors, scoreboard)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"cannot start: {error}") from None


def _threads_are_greenlets() -> bool:
    """Whether somebody has patched threads for gevent."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def _run(server: Server, graceful_timeout: float) -> None:
    """Pool threads serve, the main thread waits for signals and for the end."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        with _signals(writer):
            server.start()
            threading.Thread(target=announce_end, args=(server, writer), name="penstock-end", daemon=True).start()
            stops = 0
            while (numbers := reader.recv(64)) and ENDED not in numbers:
                for number in numbers:
                    if number in STOP_SIGNALS:
                        stops += 1
                        _stop(server, graceful_timeout if stops == 1 else 0.0, number)
                    elif number == signal.SIGUSR1:
                        reopen_logs(server)
            server.join()


def announce_end(server: Server, writer: socket.socket) -> None:
    """Waits for the end of the core, and says it at the other end of `writer`."""
    server.join()
    # The main thread has left, and closed the socket, if an exception ended it.
    with contextlib.suppress(OSError):
        writer.setblocking(True)
        writer.send(bytes((ENDED,)))


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


def reopen_logs(server: Server) -> None:
    """Opens the access log again, and says how that went."""
    try:
        server.reopen_logs()
    except OSError as error:
        log.logger.error("SIGUSR1: the access log cannot be reopened: %s", error)
    else:
        log.logger.info("SIGUSR1: access log reopened")


def run_here(server: Server, graceful_timeout: float) -> None:
    """The application on the main thread, where `pdb` can talk to the terminal; the core looks for signals itself."""

    def stop(number: int, frame: FrameType | None) -> None:
        _stop(server, graceful_timeout, number)

    handlers: dict[signal.Signals, Handler] = {
        # Also where whoever started us ignores it, as a shell does for its background jobs.
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: stop,
        signal.SIGUSR1: lambda number, frame: reopen_logs(server),
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
    with woken(writer, (*STOP_SIGNALS, signal.SIGUSR1)):
        yield


@contextlib.contextmanager
def woken(writer: socket.socket, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """The numbers of these signals arrive as bytes at the other end of `writer`: of each that comes from now on."""
    # In this order, or a signal between the two would be lost.
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        with handled(dict.fromkeys(numbers, ignore)):
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


def handle(number: signal.Signals, handler: Handler) -> None:
    """A handler of a worker's, which processes that its application forks do not have."""
    _fork.handlers[number] = handler
    signal.signal(number, handler)


class _Fork(threading.local):
    """A process that the application forks shares our wake-up descriptor: what is sent to it would reach us, and it
    would live on. So it gets the usual handlers back, before any signal can come. Our own workers set handlers of their
    own afterwards."""

    # What the wake-up descriptor alone is for, or what a worker does itself.
    handlers: ClassVar[dict[signal.Signals, Handler]] = dict.fromkeys(
        (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGURG), ignore
    )
    mask: set[int] | None = None

    def is_ours(self, number: signal.Signals) -> bool:
        return signal.getsignal(number) in (ignore, self.handlers[number])

    def before(self) -> None:
        if any(map(self.is_ours, self.handlers)):
            self.mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self.handlers))

    def in_parent(self) -> None:
        if self.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
            self.mask = None

    def in_child(self) -> None:
        if self.mask is None:
            return
        signal.set_wakeup_fd(-1)
        for number in self.handlers:
            # Ctrl-C at a terminal, which reaches every process there, is the master's.
            if number != signal.SIGINT and self.is_ours(number):
                signal.signal(number, signal.SIG_DFL)
        self.in_parent()


_fork: Final = _Fork()
os.register_at_fork(before=_fork.before, after_in_parent=_fork.in_parent, after_in_child=_fork.in_child)


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
    crew += " on gevent" * chosen["gevent"]
    log.logger.info("penstock %s, process %d, serves %s%s", __version__, os.getpid(), name, crew)
    if chosen["debug"]:
        log.logger.info(
            "debug: one request at a time on the main thread, breakpoint() works here, tracebacks go to the browser"
        )
    for listener in listeners:
        log.logger.info(
            "listening on %s%s", listener.url, " and every other address of this machine" * listener.everywhere
        )
