"""The server's own log: the loggers `tailrace`, `tailrace.error` and `tailrace.access`, and the handler that the
command line gives them.

Writing never blocks: the reader of a pipe or a log daemon may stall, which must not stall the master, a worker or
gevent's hub. What the destination accepts is written at once, and the rest waits in memory. In a worker a thread of the
core writes the rest, and ends afterwards. In a master the loop writes it, since a process that forks must have no other
thread.

A program that embeds Tailrace sets up logging itself. Only `tailrace.run` sends the log to standard error, where the
program has set up no logging, or to the destination that the program names.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import select
import sys
import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TextIO

from tailrace._tailrace import LogStream, log_destination_kind
from tailrace.errors import ConfigError
from tailrace.logs import log_formats

logger: Final = logging.getLogger("tailrace")
# The core logs here: exceptions of the application, responses that were aborted, errors of the server.
error_logger: Final = logging.getLogger("tailrace.error")
# With `--access-log logging`, a record for each response.
access_logger: Final = logging.getLogger("tailrace.access")

STDERR: Final = "stderr"
# A destination of the access log alone.
LOGGING: Final = "logging"
# How long the end of the process waits for a reader of the log (seconds).
_LAST_LINES: Final = 1.0
_STANDARD: Final = {"stdout": 1, STDERR: 2}
# Made beforehand, since there is no memory when it is needed.
_LOST: Final = b"tailrace: a line of the log was lost: there is no memory for it"
_WARNING: Final = 4

# Log files that did not exist before, which a change of user hands over.
_made: Final[list[str]] = []

# The process in which threads may write what waits; None: in none so far.
_process_with_threads: int | None = None


class LogHandler(logging.Handler):
    """Writes entries to a destination of `--log`, and never waits for it: `stderr`, `stdout`, the path of a file,
    `syslog:...` or `journal`.

    Also for `logging.config`, as `class = "tailrace.LogHandler"`: SIGUSR1 reopens a file. format: "text" or "json".
    Raises ValueError for what is no destination or format, OSError for one that cannot be opened.
    """

    def __init__(self, destination: str = STDERR, format: str = log_formats.TEXT, encoding: str = "utf-8") -> None:
        if format not in (log_formats.TEXT, log_formats.JSON):
            raise ValueError(f"format {format!r}: must be text or json")
        if not isinstance(destination, str):
            raise ValueError(f"destination {destination!r}: must be a text, such as 'stderr' or '/var/log/shop.log'")
        if destination == LOGGING:
            raise ValueError("destination 'logging' is only for --access-log; a file of this name is ./logging")
        try:
            codecs.lookup(encoding)
        except LookupError as error:
            raise ValueError(str(error)) from None
        if destination == "-":
            # As for `--log`; for the access log this is standard output.
            destination = STDERR
        # "stderr", "stdout", "file", "syslog" or "journal".
        self.kind = log_destination_kind(destination)
        if self.kind == "file":
            destination = os.path.abspath(destination)
            will_make(destination)
        self.stream = LogStream(destination, json=format == log_formats.JSON)
        # Only now: `logging` flushes every handler that exists, also one whose construction has failed.
        super().__init__()
        self._encoding = encoding
        self.setFormatter(log_formats.formatter(self.kind, format))
        if _process_with_threads == os.getpid():
            self.stream.allow_thread()
        _living.add(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, as an entry."""
        try:
            text = self.format(record).encode(self._encoding, "backslashreplace")
            fields = log_formats.journal_fields(record) if self.kind == "journal" else []
            self.stream.write(log_formats.severity(record.levelno), text, fields)
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is of `logging`
        """Says in one line that a record was lost for lack of memory; the traceback of `logging` would need more."""
        if not isinstance(sys.exc_info()[1], MemoryError):
            super().handleError(record)
            return
        with contextlib.suppress(MemoryError):
            self.stream.write(_WARNING, _LOST)

    def flush(self) -> None:
        """Writes what waits, for at most _LAST_LINES seconds. `logging.shutdown` calls this."""
        self.stream.flush(_LAST_LINES)

    def begin_anew(self) -> None:
        """In a forked process: forgets what waits, which the parent writes.

        The stream is a new one, since a thread of the parent may have held the lock of the old one.
        """
        self.stream = self.stream.in_child() or LogStream(STDERR)


# Weak: a program may call `run` again and again, and each call makes a handler.
_living: Final[weakref.WeakSet[LogHandler]] = weakref.WeakSet()


# Handlers from `--log-config` that append to a file.
_files: Final[weakref.WeakSet[logging.FileHandler]] = weakref.WeakSet()


def follow_rotation(handler: logging.Handler | None) -> None:
    """From now on SIGUSR1 reopens the file of the handler, if it appends to one."""
    if isinstance(handler, logging.FileHandler) and handler.mode.startswith("a"):
        _files.add(handler)


def _forked() -> None:
    for handler in list(_living):
        handler.begin_anew()


os.register_at_fork(after_in_child=_forked)


def send_to(destination: str, format: str, level: str) -> None:
    """Sends the log to a destination of `--log`, from this level up. Raises ConfigError."""
    logger.addHandler(_handler(destination, format))
    logger.setLevel(level.upper())
    # Otherwise each line would appear twice where the application configures the root logger.
    logger.propagate = False


def _handler(destination: str, format: str) -> logging.Handler:
    if destination not in _STANDARD:
        try:
            return LogHandler(destination, format)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--log {error}") from None
    stream: TextIO | None = getattr(sys, destination)
    handler: logging.Handler
    if stream is None:
        # It was closed at the start: the descriptor may be any file by now.
        return logging.NullHandler()
    with contextlib.suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
        if stream.fileno() == _STANDARD[destination]:
            return LogHandler(destination, format, stream.encoding or "utf-8")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log_formats.formatter(destination, format))
    return handler


def located(destination: str, directory: str | None) -> str:
    """The destination, with the path of a file from the root: the current directory may change. directory: what it is
    relative to; None: the current one."""
    if log_destination_kind(destination) != "file":
        return destination
    return os.path.abspath(os.path.join(directory or "", destination))


def repeat(error: Exception, trace: str) -> None:
    """Logs an error that ends the command, and that it has printed to standard error, unless the log goes there.

    trace: the traceback of the application's code, or empty."""
    if any(not _is_stderr(handler) for handler in logger.handlers):
        logger.error("%s", f"{error}\n{trace}".rstrip())


def _is_stderr(handler: logging.Handler) -> bool:
    if isinstance(handler, LogHandler):
        return handler.kind == STDERR
    return isinstance(handler, logging.NullHandler) or getattr(handler, "stream", None) is sys.stderr


def made() -> list[str]:
    """The log files that were made by opening them."""
    return list(_made)


def will_make(path: str) -> None:
    """Notes that a file will be made by opening it as a log, unless it exists."""
    if path not in _made and not os.path.lexists(path):
        _made.append(path)


def reopen() -> int:
    """Opens the files of the server's own log again by their names, after a rotation, those of handlers from
    `--log-config` included. If one cannot be opened, its log goes to the old one, and says so. Returns the number of
    those that were opened."""
    opened = 0
    for handler in list(_living):
        if handler.kind == "file":
            try:
                handler.stream.reopen()
                opened += 1
            except OSError as error:
                _not_reopened(str(error))
    for file in list(_files):
        try:
            _open_again(file)
            opened += 1
        except OSError as error:
            _not_reopened(f"{file.baseFilename}: {error.strerror}")
    return opened


def _not_reopened(why: str) -> None:
    logger.error("SIGUSR1: cannot reopen the log, which continues in the old file: %s", why)


def _open_again(handler: logging.FileHandler) -> None:
    """Raises OSError, and then the handler has its old file."""
    handler.acquire()
    try:
        before = getattr(handler, "stream", None)
        if before is None:
            return  # opened with the next record
        handler.stream = handler._open()
        with contextlib.suppress(OSError):
            before.close()
    finally:
        handler.release()


def allow_thread() -> None:
    """From now on a thread may write what the destination does not take at once: this process forks no workers.

    Also for handlers that the application makes later.
    """
    global _process_with_threads
    _process_with_threads = os.getpid()
    for handler in list(_living):
        handler.stream.allow_thread()


def waits_for() -> list[int]:
    """The descriptors that become writable when `catch_up` can write; empty: nothing waits."""
    return [waited for handler in list(_living) if (waited := handler.stream.waits_for()) is not None]


def catch_up() -> None:
    """Writes what waits, as far as the destinations take it now."""
    for handler in list(_living):
        handler.stream.flush(0)


def flush_streams() -> None:
    """Writes what Python has buffered for standard output and error, unless their reader has stalled."""
    end = time.monotonic() + (0 if waits_for() else _LAST_LINES)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            poll = select.poll()
            poll.register(stream.fileno(), select.POLLOUT)
            if poll.poll(max(0, end - time.monotonic()) * 1000):
                stream.flush()


def shutdown() -> None:
    """What `logging.shutdown` does, for `atexit`, but without waiting for ever for a handler that another thread uses:
    one that hangs keeps no process from ending."""
    end = time.monotonic() + _LAST_LINES
    for reference in reversed(list(vars(logging)["_handlerList"])):
        handler = reference()
        lock = getattr(handler, "lock", None)
        if handler is None or (lock is not None and not lock.acquire(timeout=max(0, end - time.monotonic()))):
            continue
        try:
            # As there: a handler may be closed already.
            with contextlib.suppress(Exception):
                if getattr(handler, "flushOnClose", True):
                    handler.flush()
                handler.close()
        finally:
            if lock is not None:
                lock.release()


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """At the end of the context, the logger `tailrace` is as before."""
    level_before, propagated, handlers = logger.level, logger.propagate, list(logger.handlers)
    try:
        yield
    finally:
        logger.setLevel(level_before)
        logger.propagate = propagated
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            handler.flush()


def show(destination: str, format: str, level: str, given: Collection[str]) -> None:
    """The log of a program that calls `run`: goes where the program says, or to standard error if the program has set
    up no logging. Else the program's handlers get it, from `log_level` up if the program gives one.

    given: the names of the options `log`, `log_format` and `log_level` that the program gives. Raises ConfigError.
    """
    if {"log", "log_format"} & set(given) or not logger.hasHandlers():
        send_to(destination, format, level)
    elif "log_level" in given:
        logger.setLevel(level.upper())


def revive() -> None:
    """Enables our loggers again: `logging.config.dictConfig` by default disables loggers that exist already."""
    for name in [logger.name, *logging.root.manager.loggerDict]:
        if f"{name}.".startswith(f"{logger.name}."):
            logging.getLogger(name).disabled = False


def access(record: Mapping[str, Any], line: str) -> None:
    """Logs a response that is over with `tailrace.access`. record: its delivery record. line: of the access log."""
    if access_logger.isEnabledFor(logging.INFO):
        made = log_formats.access_record(access_logger.makeRecord, access_logger.name, record, line)
        access_logger.handle(made)


def counted(number: int, noun: str) -> str:
    """The number with the noun, of which the plural has an s: `1 request`, `2 requests`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def request_name(request: Mapping[str, Any]) -> str:
    """A request for a line of the log: method and target, and its id if it has one.

    request: as of a scoreboard, or of a document of a server of any version.
    """
    name = f"{request['method']} {request['target']}"
    return f"{name} (id {request['request_id']})" if request.get("request_id") else name
