"""A worker process as the master sees it: its phase, its fork, its report, its end.

Makes the system calls on worker processes. Nothing is decided here; `plan` decides.

Thread: the master's only one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.logs import log
from tailrace.master.hang import Watch
from tailrace.master.recycle import Allowance, Due, Reason
from tailrace.status import memory
from tailrace.worker.report import BROKEN, FAILED, READY, Failure

_MAX_SAID: Final = 1 << 20


class Booting:
    """Forked; it loads the application."""


class Serving(NamedTuple):
    """It has reported that it serves."""

    since: float


class Draining(NamedTuple):
    """It was told to end; killed when it is still there at `until`."""

    until: float


class Hung(NamedTuple):
    """It hangs, and was told to write the stacks of its threads; killed at `until`."""

    until: float


class Killed:
    """It was sent SIGKILL."""


@dataclass(eq=False)
class Child:
    """A process that reports once: a worker, or the mold of workers.

    pid: 0 until it is forked. forked: when, by the monotonic clock. report: the reading end of its pipe; -1 when it is
    closed.
    """

    pid: int
    forked: float
    report: int = -1
    _said: bytes = field(default=b"", init=False)

    def read_report(self) -> bool:
        """Reads what has arrived of its report, without waiting. True when the report is complete and says ready."""
        while self.report >= 0:
            try:
                said = os.read(self.report, 65536)
            except BlockingIOError:
                break
            self._said += said
            if len(self._said) > _MAX_SAID:
                # This is not a report: other code writes to the pipe, and the master must not read it without end.
                self.forget_report()
                return False
            if not said or self._said in (READY, BROKEN):
                self.forget_report()
                return self._said in (READY, BROKEN)
        return False

    def forget_report(self) -> None:
        """Closes the reading end of its pipe."""
        if self.report >= 0:
            os.close(self.report)
            self.report = -1

    @property
    def is_broken(self) -> bool:
        """True when it serves an error in place of an application that does not load."""
        return self._said == BROKEN

    @property
    def failure(self) -> Failure | None:
        """Why it could not load, if it has reported that."""
        if not self._said.startswith(FAILED):
            return None
        try:
            said = json.loads(self._said[len(FAILED) :])
            return Failure(str(said["message"]), int(said["status"]), str(said["traceback"]))
        except Exception:  # it died while it wrote, or some other code wrote to the pipe
            return None

    def explained(self, ending: Ending) -> tuple[str, str]:
        """Why it has ended, for the log: in one line, and the traceback that follows, if it has reported one."""
        if (failure := self.failure) is None:
            return f"{self} {ending}", ""
        return f"{self} failed to load: {failure.message}", f"\n{failure.traceback.rstrip()}" * bool(failure.traceback)

    def send(self, number: int) -> None:
        """Sends it a signal if it is forked. Until it is reaped, no other process can have its pid."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(eq=False, kw_only=True)
class Worker(Child):
    """One worker.

    number: its name in the log, from 1; a successor has the number of the worker that it replaces.
    place: its part of the scoreboard, which no other living worker has.
    generation: of the reload that it was forked for.
    allowance: its limits, once it is ready. watch: checks whether it hangs, once it is ready. due: why it is to be
    replaced; None when it is not. replaced_for: why it was replaced.
    """

    number: int
    place: int
    generation: int
    phase: Booting | Serving | Draining | Hung | Killed = field(default_factory=Booting)
    allowance: Allowance = field(default_factory=Allowance)
    watch: Watch | None = None
    due: Due | None = None
    replaced_for: Reason | None = None

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid or 'not known yet'})"

    @property
    def is_booting(self) -> bool:
        """True until it has reported, been told to end, or ended."""
        return isinstance(self.phase, Booting)

    @property
    def is_serving(self) -> bool:
        """True from its report until it is told to end."""
        return isinstance(self.phase, Serving)

    def resident(self) -> int:
        """Bytes that it has in memory, shared pages included; 0 when it has ended."""
        return memory.resident(self.pid) or 0


class Ending(NamedTuple):
    """How a process ended. wait_status: from waitpid(2); None when other code has reaped the process. is_orphan: that
    was the parent that the kernel gave it after the end of its mold."""

    wait_status: int | None
    is_orphan: bool = False

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
            why = "its mold had ended before" if self.is_orphan else "other code has reaped it"
            return f"ended with an unknown status, since {why}"
        try:
            name = signal.Signals(self.exit_signal).name
        except ValueError:
            name = f"signal {self.exit_signal}"
        return f"was killed by {name}" + " (core dumped)" * os.WCOREDUMP(self.wait_status)


def reaped(pids: Iterable[int] | None) -> Iterator[tuple[int, Ending]]:
    """The children with these numbers that have ended, and how; None: all children.

    None is for process 1: a process that loses its parent becomes its child, and only it can reap it. Other masters
    reap their workers only, since an embedding program, or a preloaded application, waits for children of its own."""
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


def log_slow(child: Child, seconds: float) -> None:
    """Logs that it still loads after so long."""
    log.logger.warning(
        "%s is still loading the application after %.0f s; `kill -HUP %d` ends it and tries again",
        child,
        seconds,
        os.getpid(),
    )
