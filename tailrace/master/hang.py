"""Decides when a worker hangs: its process does not run at all, or one of its threads does not release the interpreter.

Both are seen on the scoreboard. The I/O side of the worker writes a heartbeat once a second, whatever the application
does; it stops only if the process is stopped. While requests are in flight and none makes progress, the I/O side also
tries to obtain the interpreter once a second, which fails while a thread holds it, as code in C may. A request that
waits, or that computes in Python for any time, releases the interpreter now and then, so its worker does not hang.

A greenlet that blocks gevent's hub does not count: it cannot be told from a long computation, and a replaced worker
would lose its requests. The hub monitor logs it, and `--request-timeout` ends it.

Time is measured by the checks of the master: each counts for at most MAX_PER_LOOK. So a machine that slept, or a
master that had no processor, makes no worker look hung.

No process, clock or log is used here; the time is an argument. Thread: the master's only one.
"""

from __future__ import annotations

from typing import Final

# How long a hung worker has to write its stacks before it is killed (seconds).
WRITING: Final = 1.0
# The shortest time-out (seconds): heartbeats come once a second, and one may be late.
MIN_TIMEOUT: Final = 3.0
# One check counts for at most this many seconds. So a pause of all processes (SIGSTOP, a frozen container), together
# with the wait for the last heartbeat before it, counts for less than MIN_TIMEOUT.
MAX_PER_LOOK: Final = 1.0


class Unchanged:
    """For how long a value has been the same, as far as it was checked."""

    def __init__(self, now: float) -> None:
        self._value: int | None = None
        self._looked_at = now
        self.seconds = 0.0

    def look(self, now: float, value: int | None) -> float:
        """Takes the value of now; the seconds for which it has been the same, 0 for None."""
        passed = min(now - self._looked_at, MAX_PER_LOOK)
        is_same = value is not None and value == self._value
        self.seconds = self.seconds + passed if is_same else 0.0
        self._value, self._looked_at = value, now
        return self.seconds


class Watch:
    """Checks one worker, from when it is ready. timeout: after how long it counts as hung (seconds); 0: never."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = max(timeout, MIN_TIMEOUT) if timeout else float("inf")
        self._heartbeat, self._question = Unchanged(now), Unchanged(now)

    def hangs(self, now: float, heartbeat: int, asked: int | None) -> str:
        """Why it hangs, as a phrase that follows its name in the log; empty when it does not."""
        still, unanswered = self._heartbeat.look(now, heartbeat), self._question.look(now, asked)
        if still >= self._timeout:
            return f"has given no heartbeat for {still:.0f} s (--hang-timeout)"
        if unanswered >= self._timeout:
            return f"has a thread that has held the interpreter for {unanswered:.0f} s (--hang-timeout)"
        return ""
