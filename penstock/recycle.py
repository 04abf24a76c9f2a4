"""When a worker has served long enough: by requests, by time, by memory, or because a thread of it is stuck.

Decides only; what is known comes as arguments, the time too. Thread: the master's only one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# Each worker's lifetime is shorter by up to this part of it, so that workers forked together do not end together.
_LIFETIME_JITTER: Final = 0.1
# A thread that the core calls stuck may still come back.
STUCK_GRACE: Final = 5.0


@dataclass(frozen=True)
class Limits:
    """The options: requests, further requests by chance, seconds, bytes. None: no such limit."""

    requests: int | None = None
    jitter: int = 0
    lifetime: float | None = None
    rss: int | None = None

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> Limits:
        """From option values."""
        return cls(
            chosen["max_requests"] or None,
            chosen["max_requests_jitter"],
            chosen["max_lifetime"] or None,
            chosen["max_rss"] or None,
        )

    def draw(self, now: float, resident: int, chance: random.Random) -> Allowance:
        """What one worker may use, as it becomes ready. resident: bytes that it has in memory already."""
        return Allowance(
            None if self.requests is None else self.requests + chance.randint(0, self.jitter),
            None if self.lifetime is None else now + self.lifetime * (1 - _LIFETIME_JITTER * chance.random()),
            # Each successor would be beyond the limit, too: replacing would never end.
            None if self.rss is None or resident > self.rss else self.rss,
        )


@dataclass
class Allowance:
    """What one worker may use: requests, until when, bytes of memory; and whether a thread of it was found stuck."""

    requests: int | None = None
    until: float | None = None
    rss: int | None = None
    is_stuck: bool = False

    def exceeded(self, now: float, counters: Mapping[str, int], resident: int) -> str:
        """Why the worker is to be replaced, in words that follow its name; empty when it is not."""
        if counters["stuck_ms"] >= 1000 * STUCK_GRACE:
            self.is_stuck = True
            return "has a thread that does not come back"
        if self.requests is not None and counters["requests"] >= self.requests:
            return f"has taken {counters['requests']} requests (--max-requests)"
        if self.until is not None and now >= self.until:
            return "has served its time (--max-lifetime)"
        if self.rss is not None and resident > self.rss:
            return f"has {resident / (1 << 20):.0f} MiB in memory (--max-rss)"
        return ""
