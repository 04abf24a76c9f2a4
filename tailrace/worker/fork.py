"""Forking a worker, or the mold of workers: a process of Tailrace that reports once, through a pipe.

Thread: the only one of the process that forks.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

from tailrace.logs import log
from tailrace.system import forks


class Forked(NamedTuple):
    """The result of a fork.

    In the worker `pid` is 0, `pipe` the writing end for its report, and `mask` the signal mask to restore. In the
    master `pipe` is the reading end, which never blocks; in a mold it is -1, because the master has it."""

    pid: int
    pipe: int
    mask: Collection[int] = ()


def fork(report: int = -1) -> Forked:
    """Forks a worker. report: the writing end of its pipe; -1: the pipe is made here. Raises OSError."""
    # Otherwise both processes would write what is buffered.
    log.flush_streams()
    reader, writer = os.pipe() if report < 0 else (-1, report)
    try:
        pid, mask = forks.fork()
    except OSError:
        _close(reader, writer)
        raise
    if pid == 0:
        _close(reader)
        return Forked(0, writer, mask)
    _close(writer)
    if reader >= 0:
        os.set_blocking(reader, False)
    return Forked(pid, reader)


def _close(*descriptors: int) -> None:
    for each in descriptors:
        if each >= 0:
            os.close(each)
