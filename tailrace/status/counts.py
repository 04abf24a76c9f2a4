"""The counts of finished responses, which the scoreboard has by group and name: adding those of workers, and their
histograms as Prometheus has them.

Thread: any; no function changes what it is given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from tailrace import _tailrace

Counts = Mapping[str, Mapping[str, int]]

# The groups that are histograms of times, in the order of a request; those that are parts of the application's time.
PHASES: Final = tuple(name for name, _, _ in _tailrace.PHASES)
PARTS: Final = tuple(name for name, is_part, _ in _tailrace.PHASES if is_part)
_SUM: Final = "sum_ns"
_REST: Final = "+Inf"
# The bounds for Prometheus, from 0.12 ms to 64 s, in seconds: every eighth bound of the scoreboard, since each bound is
# a separate series for each phase.
_COARSE: Final = (*((4 + step) / 4 * 2.0**power for power in range(-13, 6) for step in range(4)), 64.0)
# The last finite bound of the scoreboard.
LONGEST: Final = 128.0
# The percentiles that are shown.
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Histogram:
    """buckets: by their upper bound as text, each with the responses of those before; the last bound is `+Inf`. Empty
    buckets of times are omitted. sum: of all values."""

    buckets: dict[str, int]
    sum: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return next(reversed(self.buckets.values()), 0)


def added(each: Iterable[Counts]) -> dict[str, dict[str, int]]:
    """All of these together."""
    total: dict[str, dict[str, int]] = {}
    for counts in each:
        for group, names in counts.items():
            into = total.setdefault(group, {})
            for name, count in names.items():
                into[name] = into.get(name, 0) + count
    return total


def phase(counts: Counts, name: str) -> Histogram:
    """The times of a phase, in seconds."""
    buckets = {_REST: 0, **counts[name]}
    total = buckets.pop(_SUM)
    return Histogram(_cumulated({bound: buckets[bound] for bound in sorted(buckets, key=float)}), total / 1e9)


def coarse(found: Histogram) -> Histogram:
    """The histogram with fewer bounds, which are fixed."""
    bounds, numbers = [float(bound) for bound in found.buckets], [0, *found.buckets.values()]
    buckets = {repr(bound): numbers[bisect_right(bounds, bound)] for bound in _COARSE}
    return Histogram({**buckets, _REST: found.count}, found.sum)


def percentiles(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float] | None:
    """Percentiles and mean, in seconds, of the times that were added to a histogram between two documents. A percentile
    is the upper bound of its bucket. None: no time was added."""
    number = now["count"] - before["count"]
    # The counts of a worker that was killed may be lost.
    if number <= 0:
        return None
    bounds, numbers, earlier = [], [], 0
    for bound, count in now["buckets"].items():
        # A missing bound belongs to a bucket that was empty: the count up to the bound before it applies.
        earlier = before["buckets"].get(bound, earlier)
        bounds.append(float(bound))
        numbers.append(count - earlier)
    found = {}
    for name, part in PERCENTILES.items():
        bound = next(bound for bound, count in zip(bounds, numbers, strict=True) if count >= part * number)
        # Nothing more is known about a longer time.
        found[name] = min(bound, LONGEST)
    return {**found, "mean": (now["sum_seconds"] - before["sum_seconds"]) / number}


def writes(counts: Counts) -> Histogram:
    """The write calls of a response."""
    return Histogram(_cumulated(counts["calls"]), counts["sizes"]["writes"])


def _cumulated(buckets: Mapping[str, int]) -> dict[str, int]:
    return dict(zip(buckets, accumulate(buckets.values()), strict=True))
