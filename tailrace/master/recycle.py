"""Decides when a worker has served long enough: by requests, time or memory, or because a thread of it is stuck.

No process, clock or log is used here; the time is an argument. Thread: the master's only one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.cli.server_settings import ServerSettings
from tailrace.logs import log

# A worker's lifetime is shorter by up to this part, at random, so that workers forked together do not end together.
_LIFETIME_JITTER: Final = 0.1
# A thread counts as stuck when its request has been past its deadline for this long (seconds).
STUCK_GRACE: Final = 5.0


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
            settings.max_rss or None,
        )

    def draw(self, now: float, resident: int, chance: random.Random) -> Allowance:
        """The limits of one worker, when it becomes ready. resident: bytes that it has in memory already."""
        return Allowance(
            None if self.requests is None else self.requests + chance.randint(0, self.jitter),
            None if self.lifetime is None else now + self.lifetime * (1 - _LIFETIME_JITTER * chance.random()),
            # A worker that is above the limit from the start has none: its successors would be above it, too.
            None if self.rss is None or resident > self.rss else self.rss,
        )


@dataclass
class Allowance:
    """The limits of one worker: requests, end of its lifetime, bytes of memory. reason: why it is to be replaced, in a
    word, for counts; empty when it is not."""

    requests: int | None = None
    until: float | None = None
    rss: int | None = None
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
