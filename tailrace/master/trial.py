"""`--reload-trial`: whether the first worker of a reload does worse than the old workers in the same time.

Two figures are compared, of the responses that both have finished since the trial began:

- The share of 5xx responses. It is worse if it is more than twice that of the old workers plus one percentage point,
  and there are at least three such responses. This is checked throughout the trial, often with few responses, so the
  number of 5xx responses must also be above that bound by three standard deviations (the square root of the number):
  otherwise chance would undo one in five reloads of an application whose share is always 5%.
- The 95th percentile of the time that the application takes to return its first block. It is worse if it is more than
  1.5 times that of the old workers plus 50 ms, and both have finished at least 100 responses. This is checked at the
  end only, since the first requests to a new worker are often slow.

No process, clock or log is used here. Thread: the master's only one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tailrace.master.workers import Worker
from tailrace.status import counts

_FEWEST_ERRORS: Final = 3
_MORE_ERRORS: Final = 2.0
_ERROR_MARGIN: Final = 0.01
_DEVIATIONS: Final = 3.0
_FEWEST_TIMES: Final = 100
_LONGER: Final = 1.5
_TIME_MARGIN: Final = 0.05
_PART: Final = 0.95


class Figures(NamedTuple):
    """What workers have finished during the trial. p95: of the application's times (seconds); None: too few."""

    responses: int
    errors: int
    p95: float | None

    @property
    def share(self) -> float:
        """The share of 5xx responses, from 0 to 1."""
        return self.errors / max(1, self.responses)

    def __str__(self) -> str:
        time = "too few for a p95" if self.p95 is None else f"p95 {_milliseconds(self.p95)} ms"
        return f"{self.responses:,} responses, {self.share:.1%} of them 5xx, {time}"


class Trial:
    """The trial of a worker. began: what each old worker had finished when it began, by the worker's process id."""

    def __init__(self, worker: Worker, began: Mapping[int, counts.Counts]) -> None:
        self.worker = worker
        self._began = began

    def figures(self, new: counts.Counts, old: Mapping[int, counts.Counts]) -> tuple[Figures, Figures]:
        """Those of the worker on trial and of the old workers. A worker that has ended since is missing in `old`."""
        return _figures([(new, None)]), _figures((now, self._began.get(key)) for key, now in old.items())


def fault(new: Figures, old: Figures, *, is_over: bool) -> str:
    """What is worse of the new worker, as a phrase; empty: nothing."""
    bound = new.responses * (_MORE_ERRORS * old.share + _ERROR_MARGIN)
    if new.errors >= _FEWEST_ERRORS and new.errors > bound + _DEVIATIONS * math.sqrt(bound):
        return "has more errors"
    if is_over and new.p95 is not None and old.p95 is not None and new.p95 > _LONGER * old.p95 + _TIME_MARGIN:
        return "is slower"
    return ""


def _figures(workers: Iterable[tuple[counts.Counts, counts.Counts | None]]) -> Figures:
    """Those of several workers together, each with its counts now and at the beginning."""
    classes: dict[str, int] = {}
    times: dict[str, int] = {}
    for now, began in workers:
        for group, total in (("classes", classes), ("application", times)):
            for name, count in now[group].items():
                total[name] = total.get(name, 0) + count - (began[group].get(name, 0) if began else 0)
    responses = sum(classes.values()) - classes.get("none", 0)
    return Figures(responses, classes.get("5xx", 0), _p95(times))


def _milliseconds(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:,.1f}" if milliseconds >= 1 else f"{milliseconds:.3f}"


def _p95(times: dict[str, int]) -> float | None:
    found = counts.phase({"application": times}, "application")
    if found.count < _FEWEST_TIMES:
        return None
    bound = next(bound for bound, count in found.buckets.items() if count >= _PART * found.count)
    return min(float(bound), counts.LONGEST)
