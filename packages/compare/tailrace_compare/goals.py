"""The targets of Tailrace: a goal compares its figure with a number, with a peer's, or with a floor's.

A comparison with another server is the median of the ratios of single rounds, so that a machine that slows down
slows both. Every goal is one of the row `of`, Tailrace with threads if nothing else is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_compare.peers import NGINX, TAILRACE
from tailrace_compare.results import ITERATION, Column, Spread, Verdict


@dataclass(frozen=True)
class AtMost:
    """A figure no larger than a number."""

    most: float
    of: str = TAILRACE

    def judge(self, column: Column) -> Verdict:
        goal = said(self.of, f"at most {column.metric.show(self.most)} {column.metric.unit}")
        figure = column.figure(self.of)
        if figure is None:
            return without_figure(goal, column, self.of)
        return Verdict(goal, column.metric.show(figure), figure <= self.most)


@dataclass(frozen=True)
class AtLeast:
    """A figure no smaller than a number."""

    least: float
    of: str = TAILRACE

    def judge(self, column: Column) -> Verdict:
        goal = said(self.of, f"at least {column.metric.show(self.least)} {column.metric.unit}")
        figure = column.figure(self.of)
        if figure is None:
            return without_figure(goal, column, self.of)
        return Verdict(goal, column.metric.show(figure), figure >= self.least)


@dataclass(frozen=True)
class NoErrors:
    """Not one error in any round."""

    of: str = TAILRACE

    def judge(self, column: Column) -> Verdict:
        goal = said(self.of, "no errors")
        cell = column.cells.get(self.of)
        if cell is None or not cell.rounds:
            return without_figure(goal, column, self.of)
        return Verdict(goal, f"{cell.errors} errors", cell.errors == 0)


@dataclass(frozen=True)
class Times:
    """`factor` times as good as another server: so much faster, or so much smaller."""

    factor: float
    than: str
    of: str = TAILRACE

    def judge(self, column: Column) -> Verdict:
        ratio = advantage(column, self.than, self.of)
        goal = said(self.of, f"at least {self.factor:g} x {'nginx with sendfile' if self.than == NGINX else self.than}")
        if ratio is None:
            return without_figure(goal, column, self.of)
        return Verdict(goal, f"{ratio:.2f} x", ratio >= self.factor)


@dataclass(frozen=True)
class TimesBest:
    """`factor` times as good as the best of the other servers."""

    factor: float
    of: str = TAILRACE

    def judge(self, column: Column) -> Verdict:
        best = column.best_peer()
        found = spread(column, best, self.of) if best is not None else None
        goal = said(self.of, f"at least {self.factor:g} x the best other server")
        if found is None:
            return without_figure(goal, column, self.of)
        measured = f"{found.middle:.2f} x {best} ({found.low:.2f} - {found.high:.2f})"
        return Verdict(goal, measured, found.middle >= self.factor)


@dataclass(frozen=True)
class Within:
    """No worse than `factor` times another server: no slower, or no larger, than that."""

    factor: float
    than: str
    of: str = TAILRACE

    def judge(self, column: Column) -> Verdict:
        ratio = advantage(column, self.than, self.of)
        goal = said(self.of, f"within {self.factor:g} x of {self.than}")
        if ratio is None:
            return without_figure(goal, column, self.of)
        return Verdict(goal, f"{1 / ratio:.2f} x", 1 / ratio <= self.factor)


@dataclass(frozen=True)
class WithinBest:
    """No worse than `factor` times the best of the other servers."""

    factor: float
    of: str = TAILRACE

    def judge(self, column: Column) -> Verdict:
        best = column.best_peer()
        found = spread(column, best, self.of) if best is not None else None
        goal = said(self.of, f"within {self.factor:g} x of the best other server")
        if found is None:
            return without_figure(goal, column, self.of)
        measured = f"{1 / found.middle:.2f} x {best} ({1 / found.high:.2f} - {1 / found.low:.2f})"
        return Verdict(goal, measured, 1 / found.middle <= self.factor)


@dataclass(frozen=True)
class FloorTimes:
    """At most `factor` times what Python needs for iterating the same generator, without any server."""

    factor: float
    of: str = TAILRACE

    def judge(self, column: Column) -> Verdict:
        ratio = advantage(column, ITERATION, self.of)
        goal = said(self.of, f"at most {self.factor:g} x the floor")
        if ratio is None:
            return without_figure(goal, column, self.of)
        return Verdict(goal, f"{1 / ratio:.2f} x", 1 / ratio <= self.factor)


def said(of: str, goal: str) -> str:
    """The goal's words; Tailrace with threads needs no name."""
    return goal if of == TAILRACE else f"{of}: {goal}"


def without_figure(goal: str, column: Column, of: str = TAILRACE) -> Verdict:
    """If a round gave Tailrace no figure, the goal is missed; a run without Tailrace or its rival has no verdict."""
    cell = column.cells.get(of)
    if cell is not None and cell.rounds and not cell.values:
        return Verdict(goal, "no figure", False)
    return Verdict(goal, "not measured", None)


def advantage(column: Column, other: str, of: str = TAILRACE) -> float | None:
    """How many times better `of` is than `other`: the median over the rounds in which both have a figure."""
    found = spread(column, other, of)
    return None if found is None else found.middle


def spread(column: Column, other: str, of: str = TAILRACE) -> Spread | None:
    """How many times better `of` is than `other`, over the rounds in which both have a figure. None where one of these
    is zero: without that round the others would say more than the run does."""
    ours, theirs = column.cells.get(of), column.cells.get(other)
    if ours is None or theirs is None:
        return None
    pairs = [(ours.values[number], theirs.values[number]) for number in ours.values.keys() & theirs.values.keys()]
    if not pairs or any(not (mine and yours) for mine, yours in pairs):
        return None
    return Spread.of([mine / yours if column.metric.more_is_better else yours / mine for mine, yours in pairs])
