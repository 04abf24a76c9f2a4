"""A process beside the workers, which the master forks, watches and replaces: the status process, and the holder.

The master ends it by closing a pipe, or by SIGKILL where that takes too long.

Thread: the master's only one.
"""

from __future__ import annotations

import contextlib
import os
import posix  # os.close of gevent closes only when its hub runs
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tailrace.errors import denial
from tailrace.logs import log
from tailrace.master.plan import FIRST_DELAY, LONGEST_DELAY
from tailrace.master.workers import Ending
from tailrace.system import forks
from tailrace.system.descriptors import is_at_end


@dataclass
class Backoff:
    """When the process may be forked again: at once if it has lived for longer than LONGEST_DELAY, else after
    FIRST_DELAY, then each time after twice as long, up to LONGEST_DELAY."""

    at: float = float("-inf")
    _failures: int = 0

    def ended(self, began: float, now: float) -> None:
        """A process that was forked at `began` has ended, or could not be forked."""
        if now - began > LONGEST_DELAY:
            self._failures = 0
            self.at = now
        else:
            self.at = now + min(FIRST_DELAY * 2.0 ** min(self._failures, 10), LONGEST_DELAY)
            self._failures += 1


@dataclass
class Process:
    """Such a process. line: the writing end of its pipe. handle: the reading end of another pipe, whose writing end
    the process alone has, so that it is at its end when the process has ended. grace: how long it may take to end
    (seconds). stays: it has work left when it has stopped answering."""

    pid: int
    line: int
    handle: int
    began: float
    grace: float
    stays: bool = False

    def reap(self) -> Ending | None:
        """How it has ended; None: it lives. Closes the descriptors when it has ended."""
        return self._reaped() if is_at_end(self.handle) else None

    def stop_answering(self) -> None:
        """Has it finish its requests; and end, unless it has work left."""
        if not self.stays:
            self.tell()
        elif self.line >= 0:
            with contextlib.suppress(OSError):
                os.write(self.line, b".")

    def tell(self, more: bytes = b"") -> None:
        """Has it finish its requests, and end. more: what it is to know."""
        if self.line >= 0:
            if more:
                with contextlib.suppress(OSError):
                    os.write(self.line, more)
            forks.forget(self.line)
            os.close(self.line)
            self.line = -1

    def reopen_logs(self) -> None:
        """Has it open the files of its log again."""
        if not is_at_end(self.handle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def wait(self, seconds: float) -> None:
        """Waits until it has ended, for at most this long."""
        if self.handle >= 0:
            is_at_end(self.handle, seconds)

    def end(self) -> None:
        """Ends it, by force if necessary, and reaps it."""
        self.tell()
        if self.handle < 0:
            return
        if not is_at_end(self.handle, self.grace):
            # It has its end of the pipe, so it was not reaped, and no other process has its number.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._reaped()

    def _reaped(self) -> Ending:
        """Waits for its end, which is near."""
        status = None
        # A master that is process 1 reaps every child.
        with contextlib.suppress(ChildProcessError):
            status = os.waitpid(self.pid, 0)[1]
        self.close()
        return Ending(status)

    def close(self) -> None:
        """Closes the descriptors; also called in processes that inherit them."""
        self.tell()
        if self.handle >= 0:
            forks.forget(self.handle)
            os.close(self.handle)
            self.handle = -1


class Supervised:
    """A process that is replaced when it has ended. name: for the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.process: Process | None = None
        self.backoff = Backoff()

    @property
    def pid(self) -> int:
        """0: there is none."""
        return 0 if self.process is None else self.process.pid

    def descriptors(self) -> list[int]:
        """Descriptors to wait for: readable when the process has ended."""
        return [self.process.handle] if self.process else []

    def wake_at(self) -> float | None:
        """When one may be forked; None: one lives."""
        return self.backoff.at if self.process is None else None

    def reap(self, now: float) -> tuple[Process, Ending] | None:
        """The process that has ended, and how. None: it lives, or there is none."""
        process = self.process
        if process is None or (ending := process.reap()) is None:
            return None
        self.backoff.ended(process.began, now)
        self.process = None
        return process, ending

    def is_due(self, now: float) -> bool:
        """Whether one may be forked: there is none, and the last one has not failed just now."""
        return self.process is None and now >= self.backoff.at

    def fork(
        self, work: Callable[[int, int, Collection[int]], None], now: float, *, grace: float, stays: bool = False
    ) -> Process | None:
        """Forks one: see `fork`. None: that has failed, and is in the log."""
        try:
            self.process = fork(work, now, grace=grace, stays=stays)
        except OSError as error:
            log.logger.error("cannot fork %s: %s; trying again", self._name, denial(error))
            self.backoff.ended(now, now)
        return self.process

    def reopen_logs(self) -> None:
        """Has it open the files of its log again, after a rotation."""
        if self.process is not None:
            self.process.reopen_logs()

    def end(self) -> None:
        """Ends it."""
        process, self.process = self.process, None
        if process is not None:
            process.end()

    def forked(self) -> None:
        """In another process of this server: closes what is the master's."""
        if self.process is not None:
            self.process.close()


def fork(
    work: Callable[[int, int, Collection[int]], None], now: float, *, grace: float, stays: bool = False
) -> Process:
    """Forks a process. Raises OSError.

    work: called in the process with the reading end of its pipe, the process id of the master, and the signal mask to
    restore. It does not return.
    """
    log.flush_streams()
    reader, line = os.pipe()
    try:
        handle, writer = os.pipe()
    except OSError:
        os.close(reader)
        os.close(line)
        raise
    master = os.getpid()
    try:
        pid, mask = forks.fork()
        if pid == 0:
            try:
                for ours in (line, handle):
                    posix.close(ours)
                work(reader, master, mask)
            finally:
                os._exit(1)
    except OSError:
        os.close(line)
        os.close(handle)
        raise
    finally:
        for theirs in (reader, writer):
            posix.close(theirs)
    forks.keep_from_children(line, handle)
    return Process(pid, line, handle, now, grace, stays)
