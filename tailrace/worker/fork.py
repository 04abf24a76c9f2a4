"""Forking a worker, or the mold of workers: a process of Tailrace that reports once, through a pipe.

Thread: the only one of the process that forks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from dataclasses import dataclass

from tailrace.logs import log
from tailrace.system import forks


@dataclass(frozen=True)
class Forked:
    """The result of a fork.

    In the worker `pid` is 0, `pipe` the writing end for its report, and `mask` the signal mask to restore. In the
    master `pipe` is the reading end, which never blocks."""

    pid: int
    pipe: int
    mask: Collection[int] = ()


def fork() -> Forked:
    """Forks a worker. Raises OSError.

    The worker begins with every signal blocked: while it still has the master's handlers, a signal to the worker would
    arrive in the master's loop.
    """
    # Otherwise both processes would write what is buffered.
    log.flush_streams()
    reader, writer = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with forks.of_our_own():
            pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    if pid == 0:
        os.close(reader)
        return Forked(0, writer, mask)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(writer)
    os.set_blocking(reader, False)
    return Forked(pid, reader)
