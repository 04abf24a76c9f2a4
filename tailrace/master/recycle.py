"""Decides when a worker has served long enough: by requests, time or memory, or because a thread of it is stuck.

No process, clock or log is used here; the time is an argument. Thread: the master's only one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.cli.server_settings import ServerSettings
from tailrace.logs import log

# A worker's lifetime is shorter by up to this part, at random, so that workers forked together do not end together.
_LIFETIME_JITTER: Final = 0.1
# A thread counts as stuck when its request has been past its deadline for this long (seconds).
STUCK_GRACE: Final = 5.0
# With --max-rss auto, a worker that has grown by less than this part since it became ready is not replaced: its
# successor would hardly be smaller.
_GROWTH: Final = 0.25


@dataclass(frozen=True)
class Limits:
    """The options: requests, random further requests, seconds, bytes. None: no such limit."""

    requests: int | None = None
    jitter: int = 0
    lifetime: float | None = None
    rss: int | None = None

    @classmethod
    def of(cls, settings: ServerSettings) -> Limits:
        """From option values."""
        return cls(
            settings.max_requests or None,
            settings.max_requests_jitter,
            settings.max_lifetime or None,
            None if settings.max_rss == "auto" else settings.max_rss or None,
        )

    def draw(self, now: float, resident: int, chance: random.Random) -> Allowance:
        """The limits of one worker, when it becomes ready. resident: bytes that it has in memory already."""
        return Allowance(
            None if self.requests is None else self.requests + chance.randint(0, self.jitter),
            None if self.lifetime is None else now + self.lifetime * (1 - _LIFETIME_JITTER * chance.random()),
            # A worker that is above the limit from the start has none: its successors would be above it, too.
            None if self.rss is None or resident > self.rss else self.rss,
            resident,
        )


@dataclass
class Allowance:
    """The limits of one worker: requests, end of its lifetime, bytes of memory. initial: bytes that it had in memory
    when it became ready. reason: why it is to be replaced, in a word, for counts; empty when it is not."""

    requests: int | None = None
    until: float | None = None
    rss: int | None = None
    initial: int = 0
    reason: str = ""

    @property
    def is_stuck(self) -> bool:
        """True when a thread of the worker is stuck."""
        return self.reason == "stuck_thread"

    def exceeded(self, now: float, counters: Mapping[str, int], resident: int) -> str:
        """Why the worker is to be replaced, as a phrase that follows its name in the log; empty when it is not."""
        if counters["stuck_ms"] >= 1000 * STUCK_GRACE:
            self.reason = "stuck_thread"
            return "has a thread in which a request past its deadline does not end"
        if self.requests is not None and counters["requests"] >= self.requests:
            self.reason = "max_requests"
            return f"has processed {log.counted(counters['requests'], 'request')} (--max-requests)"
        if self.until is not None and now >= self.until:
            self.reason = "max_lifetime"
            return "has reached its lifetime (--max-lifetime)"
        if self.rss is not None and resident > self.rss:
            self.reason = "max_rss"
            return f"has {resident / (1 << 20):.0f} MiB in memory (--max-rss)"
        return ""


def outgrown(most: int, used: int, workers: Sequence[tuple[int, int]], *, forks_application: bool) -> int | None:
    """With --max-rss auto, which worker is to be replaced; None: none.

    most: bytes that may be in use in the cgroup. used: those in use. workers: bytes of each when it became ready, and
    now. forks_application: with --preload a successor shares the memory of the mold, and otherwise it needs as much
    as the worker needed, while both run.
    """
    at = max(range(len(workers)), key=lambda each: workers[each][1] - workers[each][0])
    initial, resident = workers[at]
    room = 0 if forks_application else initial
    return at if used + room > most and resident - initial >= initial * _GROWTH else None
