"""A worker process as the master sees it: what is known of it, its beginning by fork, its report, its end.

Owns: the phases of a worker, the pipe it reports through, and the system calls on its process. A worker reports once:
`READY` when it serves, or `FAILED` and a JSON object when it cannot. Nothing is decided here; `plan` decides.

Thread: the master's only one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.recycle import Allowance

READY: Final = b"R"
FAILED: Final = b"E"
# The exit status of a worker that could not load: sysexits are taken by applications, 1 is Python's.
CANNOT_LOAD: Final = 3
_MOST_SAID: Final = 1 << 20
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Booting:
    """Forked; it loads the application."""


@dataclass(frozen=True)
class Serving:
    """It has reported that it serves."""

    since: float


@dataclass(frozen=True)
class Draining:
    """It was told to end; killed when it is still there at `until`."""

    until: float


@dataclass(frozen=True)
class Killed:
    """It was sent SIGKILL."""


@dataclass(eq=False)
class Worker:
    """One worker.

    number: its name in the log, from 1; a successor has the number of the worker that it replaces.
    place: its part of the scoreboard, which no other living worker has.
    generation: of the reload that it was forked for. forked: when, by the monotonic clock.
    report: the end of its pipe that the master reads; -1 once there is no more to read.
    allowance: what it may use, from when it is ready. due: why it is to be replaced, in words; empty when it is not.
    """

    number: int
    place: int
    generation: int
    pid: int
    forked: float
    report: int = -1
    phase: Booting | Serving | Draining | Killed = field(default_factory=Booting)
    allowance: Allowance = field(default_factory=Allowance)
    due: str = ""
    _said: bytes = b""

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    @property
    def is_booting(self) -> bool:
        """True until it has reported, been told to end, or ended."""
        return isinstance(self.phase, Booting)

    @property
    def is_serving(self) -> bool:
        """True from its report until it is told to end."""
        return isinstance(self.phase, Serving)

    def read_report(self) -> bool:
        """Takes what the worker has said since, without waiting. True when that makes it known to be ready."""
        while self.report >= 0:
            try:
                said = os.read(self.report, 65536)
            except BlockingIOError:
                break
            self._said += said
            if len(self._said) > _MOST_SAID:
                # Not our words: whoever writes them shall not keep the master reading.
                self.forget_report()
                return False
            if not said or self._said == READY:
                self.forget_report()
                return self._said == READY
        return False

    def forget_report(self) -> None:
        """Closes our end of its pipe."""
        if self.report >= 0:
            os.close(self.report)
            self.report = -1

    @property
    def failure(self) -> Failure | None:
        """Why it could not load, if it said so."""
        if not self._said.startswith(FAILED):
            return None
        try:
            said = json.loads(self._said[len(FAILED) :])
            return Failure(str(said["message"]), int(said["status"]), str(said["traceback"]))
        except Exception:  # it died while it spoke, or somebody else wrote into its pipe
            return None

    def tell(self, number: signal.Signals) -> None:
        """Sends it a signal. Until it is reaped, its number cannot belong to another process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def resident(self) -> int:
        """Bytes of it in memory, shared ones included; 0 when it is gone."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0


@dataclass(frozen=True)
class Failure:
    """Why a worker could not load: the line of a PenstockError, its exit status, the traceback of the user's code."""

    message: str
    status: int
    traceback: str = ""

    def report(self) -> bytes:
        """What the worker writes into its pipe."""
        return FAILED + json.dumps(self.__dict__).encode()


@dataclass(frozen=True)
class Ending:
    """How a process ended: the status of waitpid(2), None when somebody else has taken it."""

    wait_status: int | None

    @property
    def is_clean(self) -> bool:
        """True for exit status 0."""
        return self.wait_status == 0

    @property
    def exit_status(self) -> int | None:
        """What it gave to exit(); None when a signal ended it."""
        if self.wait_status is None or not os.WIFEXITED(self.wait_status):
            return None
        return os.WEXITSTATUS(self.wait_status)

    @property
    def exit_signal(self) -> int | None:
        """The signal that ended it; None when it exited."""
        if self.wait_status is None or not os.WIFSIGNALED(self.wait_status):
            return None
        return os.WTERMSIG(self.wait_status)

    def __str__(self) -> str:
        if self.exit_status is not None:
            return f"exited with status {self.exit_status}"
        if self.exit_signal is None or self.wait_status is None:
            return "ended, and somebody else took its status"
        try:
            name = signal.Signals(self.exit_signal).name
        except ValueError:
            name = f"signal {self.exit_signal}"
        return f"was killed by {name}" + " (core dumped)" * os.WCOREDUMP(self.wait_status)


@dataclass(frozen=True)
class Forked:
    """What a fork comes to.

    In the worker `pid` is 0, `pipe` is what it reports to, and `mask` the signal mask to go back to. In the master
    `pipe` is the other end, which never blocks.
    """

    pid: int
    pipe: int
    mask: Collection[int] = ()


def fork() -> Forked:
    """Forks a worker. Raises OSError.

    The worker begins with every signal blocked, so that none reaches it while it still has the master's handlers and
    would ring the master's bell.
    """
    for stream in (sys.stdout, sys.stderr):
        # What is buffered would be written by both.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    reader, writer = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
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


def reaped(pids: Iterable[int] | None) -> Iterator[tuple[int, Ending]]:
    """Those of these children that have ended, and how; None: of all children.

    All is for PID 1: whoever loses its parent becomes its child, and nobody else would reap it. Elsewhere a program
    that embeds us, or an application loaded in the master, waits for children of its own.
    """
    if pids is None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                yield found[0], Ending(found[1])
        return
    for pid in pids:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            yield pid, Ending(None)
        else:
            if ended:
                yield pid, Ending(status)
