"""Processes that the application forks: which descriptors they lose, and how they end.

The core closes its own descriptors in such a child and gives up its connections; this file closes those of Python. When
the application's code returns or raises in the child, the child ends, with the exit status and the last output that a
Python program would have, and without the exit functions that its parent has registered. Processes that Tailrace itself
forks (a worker, a new master, a watcher) are no such children.

Any thread may fork. The handlers run in the child, which then has this thread alone.
"""

from __future__ import annotations

import contextlib
import os
import posix  # os.close of gevent closes only when its hub runs
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Final, NoReturn

_sockets: Final[weakref.WeakSet[socket.socket]] = weakref.WeakSet()
_descriptors: Final[set[int]] = set()
# The threads that fork a process of Tailrace now.
_ours: Final[set[int]] = set()


def keep_from_children(*found: socket.socket | int) -> None:
    """These are closed in the children that the application forks.

    Call `forget` before you close a descriptor; sockets that are closed are left out anyway.
    """
    for each in found:
        if isinstance(each, int):
            _descriptors.add(each)
        else:
            _sockets.add(each)


def forget(*descriptors: int) -> None:
    """These descriptors are about to be closed."""
    _descriptors.difference_update(descriptors)


def forget_all() -> None:
    """In a process of Tailrace that was just forked: it registers again what it keeps."""
    _sockets.clear()
    _descriptors.clear()


def fork() -> tuple[int, set[int]]:
    """Forks a process of Tailrace, which closes what it does not need. Its number, 0 in the new process; and the signal
    mask, which the new process restores. Raises OSError.

    The new process begins with every signal blocked: while it still has the handlers of its parent, a signal to it
    would arrive in the parent's loop.
    """
    thread = threading.get_ident()
    _ours.add(thread)
    mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))
    pid = -1
    try:
        pid = os.fork()  # noqa: TID251
    finally:
        _ours.discard(thread)
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid, mask


@contextlib.contextmanager
def application() -> Iterator[None]:
    """The application's code runs inside the context. A child that it forks ends where it would leave the context."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            leave(error)
        raise
    if os.getpid() != process:
        leave(None)


def leave(error: BaseException | None) -> NoReturn:
    """Ends a child as Python ends a program after this exception, or after none. The core calls this, too."""
    status = 1
    try:
        status = _status(error)
        if error is not None and not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        try:
            for stream in (sys.stdout, sys.stderr):
                # Any exception, Ctrl-C included: the process ends all the same.
                with contextlib.suppress(BaseException):
                    stream.flush()
        finally:
            os._exit(status & 0xFF)


def _status(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _in_child() -> None:
    if threading.get_ident() in _ours:
        return
    _ours.clear()
    found = {*_descriptors, *(each.fileno() for each in _sockets)} - {-1}
    forget_all()
    if found and "gevent" in sys.modules:
        # A hub may still wait for them, and its loop aborts the process when they are closed. So each is replaced by
        # the reading end of a pipe in which nothing is ever written.
        with contextlib.suppress(OSError):
            reader, _writer = posix.pipe()
            for descriptor in found:
                posix.dup2(reader, descriptor, inheritable=False)
            found = {reader}
    for descriptor in found:
        with contextlib.suppress(OSError):
            posix.close(descriptor)


os.register_at_fork(after_in_child=_in_child)
