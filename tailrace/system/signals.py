"""Handlers of signals: set for a time, and removed in processes that the application forks.

The kernel may deliver a signal to any thread, and a thread in the application may hold the interpreter for long. So the
main thread waits for Python's wakeup descriptor (`signal.set_wakeup_fd`) and not for a Python handler to run. The
signal mask is left as it is, since the children of an application would inherit a change.

Thread: the main one, except the handlers around a fork, which run on the thread that forks.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import ClassVar, Final

Handler = Callable[[int, "FrameType | None"], object]


# From Linux's <asm-generic/socket.h>; the `socket` module lacks it.
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("@ll")


def wakeup_sockets() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets: one for `arrived`, and the writer for `woken`, which does not block."""
    # Datagrams, since the kernel records the arrival time of each. The socket buffer holds as many of them as single
    # bytes of a stream (278 of either on Linux 6.18).
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    # Sandboxes may have a kernel without this option.
    with contextlib.suppress(OSError):
        reader.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    writer.setblocking(False)
    return reader, writer


def arrived(reader: socket.socket) -> tuple[int, float]:
    """The next signal, and when the kernel delivered it (seconds, CLOCK_REALTIME). Raises BlockingIOError.

    If another thread holds the interpreter, this may be long before the signal is read.
    """
    data, notes, _, _ = reader.recvmsg(1, socket.CMSG_SPACE(_TIMESPEC.size))
    for level, kind, note in notes:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = _TIMESPEC.unpack(note)
            return data[0], seconds + nanoseconds / 1e9
    # The kernel has recorded no time.
    return data[0], time.time()


@contextlib.contextmanager
def woken(writer: socket.socket, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Inside the context, the numbers of these signals arrive as bytes at the other end of `writer`."""
    # First the descriptor, then the handlers: a signal between the two would be lost otherwise.
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        with handled(dict.fromkeys(numbers, ignore)):
            yield
    finally:
        signal.set_wakeup_fd(previous)


@contextlib.contextmanager
def handled(handlers: dict[signal.Signals, Handler]) -> Iterator[None]:
    """Sets these handlers, and at the end the previous ones again."""
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            # None: the handler was not set by Python code, and cannot be set again.
            if handler is not None:
                signal.signal(number, handler)


# A signal that is repeated within this time counts once (seconds). timeout(1) signals its child, and then the child's
# process group, so one stop arrives twice.
REPEATED: Final = 0.1


class Stops:
    """Decides which of the signals that stop a server count.

    A signal is a repetition if it arrived within REPEATED of the last one that counted. The time of handling does not
    show that: if the main thread waits for the interpreter, it handles signals that arrived seconds apart at once. So
    the loops pass the times of `arrived`. Python's own handlers pass the time at which they run, since Python merges
    the signals of one number that arrive before its handler runs.
    """

    def __init__(self) -> None:
        self._counted: dict[int, float] = {}

    def counts(self, number: int, at: float) -> bool:
        """Whether a signal counts, rather than repeats the last one that counted. at: when it arrived (seconds of one
        clock, which may be set back)."""
        if abs(at - self._counted.get(number, -math.inf)) < REPEATED:
            return False
        self._counted[number] = at
        return True


def ignore(number: int, frame: FrameType | None) -> None:
    """Does nothing: Python writes to the wakeup descriptor only for signals that have a handler in Python."""


def handle(number: signal.Signals, handler: Handler) -> None:
    """Sets a handler that is removed in the processes that the application forks."""
    _fork.handlers[number] = handler
    signal.signal(number, handler)


def ignore_always(number: signal.Signals) -> None:
    """Ignores a signal, also in the programs that this process starts."""
    signal.signal(number, signal.SIG_IGN)


def reset() -> None:
    """In a process that a master has forked: removes the handlers, which would act for the master."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


class OwnHandler:
    """Base of the classes whose instances or methods are handlers of ours: they are removed in children, too."""


class _Fork(threading.local):
    """Removes our handlers in a process that the application forks, before any signal can reach it.

    Such a process shares our wakeup descriptor: a signal that is sent to the child would be handled by its parent, and
    the child would live on. Workers are forked in the same way, and set handlers of their own afterwards.
    """

    # The signals that we handle, and the handlers of `handle`.
    handlers: ClassVar[dict[signal.Signals, Handler]] = dict.fromkeys(
        (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGURG), ignore
    )
    mask: set[int] | None = None

    def is_ours(self, number: signal.Signals) -> bool:
        handler = signal.getsignal(number)
        stops = isinstance(getattr(handler, "__self__", handler), OwnHandler)
        return stops or handler in (ignore, self.handlers[number])

    def before(self) -> None:
        if any(map(self.is_ours, self.handlers)):
            for stream in (sys.stdout, sys.stderr):
                # Otherwise parent and child would both write what is buffered.
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
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
            if not self.is_ours(number):
                continue
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
            elif signal.getsignal(number) is not ignore:
                signal.signal(number, signal.default_int_handler)
            # else SIGINT stays ignored: Ctrl-C at a terminal reaches every process there, and only the master handles
            # it.
        self.in_parent()


_fork: Final = _Fork()
os.register_at_fork(before=_fork.before, after_in_parent=_fork.in_parent, after_in_child=_fork.in_child)
