"""Decides when a worker has served long enough: by requests, time or memory, or because a thread of it is stuck.

No process, clock or log is used here; the time is an argument. Thread: the master's only one.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.cli.server_settings import ServerSettings
from tailrace.logs import log

# A worker may take more requests, and lives shorter, by up to this part, at random, so that workers forked together do
# not end together.
_JITTER: Final = 0.1
# A thread counts as stuck when its request has been past its deadline for this long (seconds).
STUCK_GRACE: Final = 5.0
# With --max-rss auto, a worker that has grown by less than this part since it became ready is not replaced: its
# successor would hardly be smaller.
_GROWTH: Final = 0.25


class Reason(enum.Enum):
    """Why a worker is replaced; the value is its name in counts and metrics."""

    CRASH = "crash"
    HANG = "hang"
    LOAD_FAILURE = "load_failure"
    RELOAD = "reload"
    MAX_REQUESTS = "max_requests"
    MAX_LIFETIME = "max_lifetime"
    MAX_RSS = "max_rss"
    STUCK_THREAD = "stuck_thread"


class Due(NamedTuple):
    """A worker is to be replaced. detail: why, as a phrase that follows its name in the log."""

    reason: Reason
    detail: str


class Limits(NamedTuple):
    """The options: requests, seconds, bytes. None: no such limit."""

    requests: int | None = None
    lifetime: float | None = None
    rss: int | None = None

    @classmethod
    def of(cls, settings: ServerSettings) -> Limits:
        """From option values."""
        return cls(
            settings.max_requests or None,
            settings.max_lifetime or None,
            None if settings.max_rss == "auto" else settings.max_rss or None,
        )

    def draw(self, now: float, resident: int, chance: random.Random) -> Allowance:
        """The limits of one worker, when it becomes ready. resident: bytes that it has in memory already."""
        return Allowance(
            None if self.requests is None else self.requests + chance.randint(0, int(self.requests * _JITTER)),
            None if self.lifetime is None else now + self.lifetime * (1 - _JITTER * chance.random()),
            # A worker that is above the limit from the start has none: its successors would be above it, too.
            None if self.rss is None or resident > self.rss else self.rss,
            resident,
        )


class Allowance(NamedTuple):
    """The limits of one worker: requests, end of its lifetime, bytes of memory. initial: bytes that it had in memory
    when it became ready."""

    requests: int | None = None
    until: float | None = None
    rss: int | None = None
    initial: int = 0

    def exceeded(self, now: float, counters: Mapping[str, int], resident: int) -> Due | None:
        """Why the worker is to be replaced; None when it is not."""
        if counters["stuck_ms"] >= 1000 * STUCK_GRACE:
            return Due(Reason.STUCK_THREAD, "has a thread in which a request past its deadline does not end")
        if self.requests is not None and counters["requests"] >= self.requests:
            processed = log.counted(counters["requests"], "request")
            return Due(Reason.MAX_REQUESTS, f"has processed {processed} (--max-requests)")
        if self.until is not None and now >= self.until:
            return Due(Reason.MAX_LIFETIME, "has reached its lifetime (--max-lifetime)")
        if self.rss is not None and resident > self.rss:
            return Due(Reason.MAX_RSS, f"has {resident / (1 << 20):.0f} MiB in memory (--max-rss)")
        return None


def outgrown(most: int, used: int, workers: Sequence[tuple[int, int]], *, shares_memory: bool) -> int | None:
    """With --max-rss auto, which worker is to be replaced; None: none.

    most: bytes that may be in use in the cgroup. used: those in use. workers: bytes of each when it became ready, and
    now. shares_memory: a successor shares the application's memory with the process that forks it; otherwise it needs
    as much as the worker needed, while both run.
    """
    at = max(range(len(workers)), key=lambda each: workers[each][1] - workers[each][0])
    initial, resident = workers[at]
    room = 0 if shares_memory else initial
    return at if used + room > most and resident - initial >= initial * _GROWTH else None
