"""The counts of finished responses, which the scoreboard has by group and name: adding those of workers, and their
histograms as Prometheus has them.

Thread: any; no function changes what it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

Counts = Mapping[str, Mapping[str, int]]

# The groups that are histograms of times, in the order of a request.
PHASES: Final = ("queued", "application", "iterating", "blocked", "total")
_SUM: Final = "sum_ns"


@dataclass(frozen=True)
class Histogram:
    """buckets: by their upper bound as text, each with the responses of those before. sum: of all values."""

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
    buckets = {bound: count for bound, count in counts[name].items() if bound != _SUM}
    return Histogram(_cumulated(buckets), counts[name][_SUM] / 1e9)


def writes(counts: Counts) -> Histogram:
    """The write calls of a response."""
    return Histogram(_cumulated(counts["calls"]), counts["sizes"]["writes"])


def _cumulated(buckets: Mapping[str, int]) -> dict[str, int]:
    return dict(zip(buckets, accumulate(buckets.values()), strict=True))
