"""Measured figures and their evaluation: one column per metric, one cell per server."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Protocol

from tailrace_compare.peers import NGINX, TAILRACE, TAILRACE_GEVENT, is_ours

ITERATION = "iteration"
# In a result, but not in competition.
FLOORS = (NGINX, ITERATION)


@dataclass(frozen=True)
class Verdict:
    """A goal and its result; `met` is None if it is unknown."""

    goal: str
    measured: str
    met: bool | None


class Goal(Protocol):
    """A target for one metric."""

    def judge(self, column: Column) -> Verdict: ...


@dataclass(frozen=True)
class Metric:
    """The meaning of a figure.

    key: its name in the JSON file. short: its heading in wide tables. unit: as one says it after the number.
    digits: behind the point.
    """

    key: str
    title: str
    short: str
    unit: str
    more_is_better: bool
    digits: int = 0
    goals: tuple[Goal, ...] = ()

    def show(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


@dataclass
class Sample:
    """One round of one server: its figures by the metric's key, its faults, and the share of the server's core that
    other processes used, from 0 to 1."""

    values: dict[str, float] = field(default_factory=dict)
    errors: int = 0
    note: str = ""
    others: float | None = None


@dataclass
class Cell:
    """All rounds of one server in one metric; a round without a figure is in `rounds` and not in `values`. `others`:
    how much of the server's core others used, from 0 to 1, in those rounds that tell."""

    rounds: int = 0
    values: dict[int, float] = field(default_factory=dict)
    errors: int = 0
    notes: list[str] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def add(self, number: int, value: float | None, sample: Sample) -> None:
        """Adds one round's figure, if it has one, and its faults."""
        self.rounds += 1
        if value is not None:
            self.values[number] = value
        if sample.others is not None:
            self.others.append(sample.others)
        self.fault(sample)

    def fault(self, sample: Sample) -> None:
        """Adds errors and remarks only."""
        self.errors += sample.errors
        if sample.note and sample.note not in self.notes:
            self.notes.append(sample.note)


@dataclass
class Column:
    """One metric of every server."""

    metric: Metric
    cells: dict[str, Cell] = field(default_factory=dict)

    def figure(self, name: str) -> float | None:
        """The median of a server's rounds."""
        cell = self.cells.get(name)
        return median(cell.values.values()) if cell is not None and cell.values else None

    def ranked(self) -> list[str]:
        """The servers, best first, those without a figure last."""

        def place(name: str) -> tuple[bool, float]:
            figure = self.figure(name)
            return figure is None, 0.0 if figure is None else (-figure if self.metric.more_is_better else figure)

        return sorted(self.cells, key=place)

    def ours(self) -> str:
        """The row with which the others are compared: Tailrace with threads, if it takes part."""
        return TAILRACE if TAILRACE in self.cells or TAILRACE_GEVENT not in self.cells else TAILRACE_GEVENT

    def best_peer(self) -> str | None:
        """The best of the servers that are neither Tailrace nor a floor, among those that made no error."""
        rivals = [name for name in self.ranked() if not is_ours(name) and name not in FLOORS]
        with_figure = [name for name in rivals if self.figure(name) is not None]
        return next((name for name in with_figure if not self.cells[name].errors), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.metric.title,
            "unit": self.metric.unit,
            "more_is_better": self.metric.more_is_better,
            "servers": {
                name: {
                    "median": self.figure(name),
                    "rounds": {str(number): value for number, value in sorted(cell.values.items())},
                    "rounds_tried": cell.rounds,
                    "errors": cell.errors,
                    "notes": cell.notes,
                    "others": cell.others,
                }
                for name, cell in self.cells.items()
            },
        }

    @classmethod
    def from_json(cls, metric: Metric, document: dict[str, Any]) -> Column:
        cells = {
            name: Cell(
                rounds=cell["rounds_tried"],
                values={int(number): value for number, value in cell["rounds"].items()},
                errors=cell["errors"],
                notes=list(cell["notes"]),
                others=list(cell.get("others", [])),
            )
            for name, cell in document["servers"].items()
        }
        return cls(metric, cells)


@dataclass(frozen=True)
class Spread:
    """The median of the ratios of single rounds, and the quartiles; with fewer than four rounds the extremes."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, ratios: Collection[float]) -> Spread:
        """Of at least one ratio."""
        if len(ratios) < 4:
            return cls(min(ratios), median(ratios), max(ratios))
        return cls(*quantiles(ratios, n=4, method="inclusive"))


def percentile(values: Collection[int], part: float) -> int:
    """The value that this part of them does not exceed. Of at least one value."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def columns_for(metrics: Iterable[Metric]) -> dict[str, Column]:
    return {metric.key: Column(metric) for metric in metrics}
