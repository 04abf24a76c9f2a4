"""The server's own log: the loggers `tailrace` and `tailrace.error`, and the handler that the command line gives them.

Writing to standard error never blocks: its reader may stall, which must not stall the master, a worker or gevent's hub.
What standard error accepts is written at once, and the rest waits in memory. In a worker a thread of the core writes
the rest, and ends afterwards. In a master the loop writes it, since a process that forks must have no other thread.

A program that embeds Tailrace sets up logging itself. Only `tailrace.run` sends the log to standard error, where the
program has set up no logging.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Final, TextIO

from tailrace._tailrace import LogStream

logger: Final = logging.getLogger("tailrace")
# The core logs here: exceptions of the application, responses that were aborted, errors of the server.
error_logger: Final = logging.getLogger("tailrace.error")

# How long the end of the process waits for a reader of the log (seconds).
_LAST_LINES: Final = 1.0
_STDERR: Final = 2
# Made beforehand, since there is no memory when it is needed.
_LOST: Final = b"tailrace: a line of the log was lost: there is no memory for it\n"


class StderrHandler(logging.Handler):
    """Writes to the descriptor of standard error, and never waits for it."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.stream = LogStream()
        self._encoding = encoding
        _living.add(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, as a line."""
        try:
            line = self.format(record) + "\n"
            self.stream.write(line.encode(self._encoding, "backslashreplace"))
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is of `logging`
        """Says in one line that a record was lost for lack of memory; the traceback of `logging` would need more."""
        if not isinstance(sys.exc_info()[1], MemoryError):
            super().handleError(record)
            return
        with contextlib.suppress(MemoryError):
            self.stream.write(_LOST)

    def flush(self) -> None:
        """Writes what waits, for at most _LAST_LINES seconds. `logging.shutdown` calls this."""
        self.stream.flush(_LAST_LINES)

    def begin_anew(self) -> None:
        """In a forked process: forgets what waits, which the parent writes.

        The stream is a new one, since a thread of the parent may have held the lock of the old one.
        """
        self.stream = LogStream()


# Weak: a program may call `run` again and again, and each call makes a handler.
_living: Final[weakref.WeakSet[StderrHandler]] = weakref.WeakSet()


def _forked() -> None:
    for handler in list(_living):
        handler.begin_anew()


os.register_at_fork(after_in_child=_forked)


def to_stderr(level: str) -> None:
    """Sends the log to standard error, from this level up."""
    handler = _handler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s tailrace[%(process)d] %(levelname)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    )
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    # Otherwise each line would appear twice where the application configures the root logger.
    logger.propagate = False


def _handler(stream: TextIO | None) -> logging.Handler:
    if stream is None:
        # Standard error was closed at the start: descriptor 2 may be any file by now.
        return logging.NullHandler()
    with contextlib.suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
        if stream.fileno() == _STDERR:
            return StderrHandler(stream.encoding or "utf-8")
    return logging.StreamHandler(stream)


def allow_thread() -> None:
    """From now on a thread may write what standard error does not take at once: this process forks no workers."""
    for handler in _handlers():
        handler.stream.allow_thread()


def waits_for() -> int | None:
    """The descriptor that becomes writable when `catch_up` can write; None: nothing waits."""
    return next((waited for handler in _handlers() if (waited := handler.stream.waits_for()) is not None), None)


def catch_up() -> None:
    """Writes what waits, as far as standard error takes it now."""
    for handler in _handlers():
        handler.stream.flush(0)


def flush_streams() -> None:
    """Writes what Python has buffered for standard output and error, unless their reader has stalled."""
    end = time.monotonic() + (_LAST_LINES if waits_for() is None else 0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            poll = select.poll()
            poll.register(stream.fileno(), select.POLLOUT)
            if poll.poll(max(0, end - time.monotonic()) * 1000):
                stream.flush()


def _handlers() -> list[StderrHandler]:
    return [handler for handler in logger.handlers if isinstance(handler, StderrHandler)]


@contextlib.contextmanager
def shown(level: str, *, is_given: bool) -> Iterator[None]:
    """The log of a program that calls `run`: on standard error where the program has set up no logging.

    Else the program's handlers get it, from `level` up if the program gives a level.
    """
    level_before, propagated, handlers = logger.level, logger.propagate, list(logger.handlers)
    if not logger.hasHandlers():
        to_stderr(level)
    elif is_given:
        logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.setLevel(level_before)
        logger.propagate = propagated
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            handler.flush()


def revive() -> None:
    """Enables the loggers again: `logging.config.dictConfig` by default disables loggers that exist already."""
    logger.disabled = False
    error_logger.disabled = False


def counted(number: int, noun: str) -> str:
    """The number with the noun, of which the plural has an s: `1 request`, `2 requests`."""
    return f"{number} {noun}{'s' * (number != 1)}"
