"""What Penstock is meant to reach: a goal compares its figure with a number, with a peer's, or with a floor's.

A comparison with another server is the median of the ratios of single rounds, so that a machine that slows down
slows both.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Protocol

from bench.peers import NGINX, PENSTOCK
from bench.results import ITERATION, Column


@dataclass(frozen=True)
class Verdict:
    """A goal and what became of it; `met` is None where it could not be told."""

    goal: str
    measured: str
    met: bool | None


class Goal(Protocol):
    """Something to reach with one metric."""

    def judge(self, column: Column) -> Verdict: ...


@dataclass(frozen=True)
class AtMost:
    """A figure no larger than a number."""

    most: float

    def judge(self, column: Column) -> Verdict:
        goal = f"at most {column.metric.show(self.most)} {column.metric.unit}"
        figure = column.figure(PENSTOCK)
        if figure is None:
            return without_figure(goal, column)
        return Verdict(goal, column.metric.show(figure), figure <= self.most)


@dataclass(frozen=True)
class AtLeast:
    """A figure no smaller than a number."""

    least: float

    def judge(self, column: Column) -> Verdict:
        goal = f"at least {column.metric.show(self.least)} {column.metric.unit}"
        figure = column.figure(PENSTOCK)
        if figure is None:
            return without_figure(goal, column)
        return Verdict(goal, column.metric.show(figure), figure >= self.least)


@dataclass(frozen=True)
class NoErrors:
    """Not one error in any round."""

    def judge(self, column: Column) -> Verdict:
        cell = column.cells.get(PENSTOCK)
        if cell is None or not cell.rounds:
            return without_figure("no errors", column)
        return Verdict("no errors", f"{cell.errors} errors", cell.errors == 0)


@dataclass(frozen=True)
class Times:
    """`factor` times as good as another server: so much faster, or so much smaller."""

    factor: float
    than: str

    def judge(self, column: Column) -> Verdict:
        ratio = advantage(column, self.than)
        goal = f"at least {self.factor:g} x {'nginx with sendfile' if self.than == NGINX else self.than}"
        if ratio is None:
            return without_figure(goal, column)
        return Verdict(goal, f"{ratio:.2f} x", ratio >= self.factor)


@dataclass(frozen=True)
class TimesBest:
    """`factor` times as good as the best of the peers."""

    factor: float

    def judge(self, column: Column) -> Verdict:
        best = column.best_peer()
        ratio = advantage(column, best) if best is not None else None
        goal = f"at least {self.factor:g} x the best peer"
        if ratio is None:
            return without_figure(goal, column)
        return Verdict(goal, f"{ratio:.2f} x {best}", ratio >= self.factor)


@dataclass(frozen=True)
class FloorTimes:
    """At most `factor` times what Python needs for iterating the same generator, without any server."""

    factor: float

    def judge(self, column: Column) -> Verdict:
        ratio = advantage(column, ITERATION)
        goal = f"at most {self.factor:g} x the floor"
        if ratio is None:
            return without_figure(goal, column)
        return Verdict(goal, f"{1 / ratio:.2f} x", 1 / ratio <= self.factor)


def without_figure(goal: str, column: Column) -> Verdict:
    """A round that gave Penstock no figure is a goal missed; a run without Penstock or its rival tells nothing."""
    cell = column.cells.get(PENSTOCK)
    if cell is not None and cell.rounds and not cell.values:
        return Verdict(goal, "no figure", False)
    return Verdict(goal, "not measured", None)


def advantage(column: Column, other: str) -> float | None:
    """How many times better Penstock is than `other`: the median over the rounds in which both have a figure."""
    ours, theirs = column.cells.get(PENSTOCK), column.cells.get(other)
    if ours is None or theirs is None:
        return None
    pairs = [(ours.values[number], theirs.values[number]) for number in ours.values.keys() & theirs.values.keys()]
    ratios = [
        (mine / yours if column.metric.more_is_better else yours / mine) for mine, yours in pairs if mine and yours
    ]
    return median(ratios) if ratios else None
