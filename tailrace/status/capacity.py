"""How much more a server can take, as HAProxy's agent-check is told it. No socket or clock is used here.

A worker is idle with 100 %: each running request takes the share of one thread. While requests wait although threads
are free, the interpreter is the limit and not the threads, so what is left is divided by how much more wants to run
than runs. A worker that does not serve, or has not been started yet, has nothing left.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tailrace.status.snapshot import Snapshot
from tailrace.status.state import SERVING

# The weight is the mean of what was left within this time (seconds): a queue of a moment must not move traffic.
WINDOW: Final = 1.0
# At most so much of a reason is told (characters).
_LONGEST_REASON: Final = 120


def left(taken: Snapshot) -> float:
    """What is left of the server's capacity, from 0 to 1."""
    state = taken.state
    found = 0.0
    for worker in taken.workers:
        if worker.state == SERVING:
            running, queued = worker.counters.get("running", 0), worker.counters.get("queued", 0)
            threads = max(0.0, 1 - running / max(1, state.threads_each))
            # One that is about to run counts as running.
            running = max(1, running)
            found += threads * running / (running + queued)
    return min(1.0, found / max(1, state.wanted))


def line(taken: Snapshot, mean: float, *, is_new: bool) -> str:
    """What HAProxy is told, one line.

    mean: of what is left, from 0 to 1. is_new: the server has begun to serve a short time ago. Then `ready` ends the
    drain that its predecessor may have asked for; later it would end one that an operator has asked for.
    """
    if taken.state.stopping:
        return "drain\n"
    if why := taken.not_ready:
        return f"down #{why[:_LONGEST_REASON]}\n"
    return f"{'ready ' * is_new}up {max(1, round(100 * mean))}%\n"


class Mean:
    """The mean of values over the last WINDOW. Times by the monotonic clock (seconds)."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()

    def add(self, value: float, now: float) -> float:
        """Adds a value; the mean with it."""
        self._values.append((now, value))
        while self._values[0][0] < now - WINDOW:
            self._values.popleft()
        return sum(each for _, each in self._values) / len(self._values)

    def forget(self) -> None:
        """Forgets all values."""
        self._values.clear()
