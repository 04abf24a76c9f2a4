"""The finding of a column in words: which server is ahead, by how much, and with which reservations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tailrace.printable import printable
from tailrace_compare.goals import spread
from tailrace_compare.peers import AT_OUR_DEFAULTS, NGINX, is_ours
from tailrace_compare.report.run import Experiment
from tailrace_compare.results import ITERATION, Cell, Column, Metric, Spread

FLOOR_LABELS = {NGINX: "floor: nginx, sendfile", ITERATION: "floor: iterating, no server"}
SIGN = "\N{MULTIPLICATION SIGN}"
# Units of memory, for which a ratio is stated as a share.
MEMORY = ("MiB", "MB", "KiB", "GiB", "bytes")


class Standing(Enum):
    """Tailrace compared with the best other server that had no errors."""

    AHEAD = "ahead"
    EVEN = "even"
    BEHIND = "behind"
    UNKNOWN = "not comparable"


@dataclass(frozen=True)
class Finding:
    """One sentence about one column, and its basis. rival: the best other server without an error."""

    standing: Standing
    text: str
    rival: str | None = None
    ratio: Spread | None = None


def label(name: str) -> str:
    """The name of a row, as shown."""
    return FLOOR_LABELS.get(name, printable(name))


def looks_even(column: Column, name: str) -> bool:
    """Whether the figures of a server and of Tailrace are both displayed as zero, such as 0.0 MB."""
    theirs, ours = column.figure(name), column.figure(column.ours())
    if theirs is None or ours is None or name == column.ours():
        return False
    return column.metric.show(theirs) == column.metric.show(ours) == column.metric.show(0.0)


def is_even(found: Spread) -> bool:
    """Whether the quartiles, as shown, lie on both sides of 1: then neither server is better."""
    return round(found.low, 2) <= 1 <= round(found.high, 2)


def ratio_to(column: Column, name: str) -> Spread | None:
    """How many times better Tailrace is than this row; None for itself, and if no round has both figures."""
    return spread(column, name, column.ours()) if name != column.ours() else None


def ratio_text(column: Column, name: str) -> tuple[str, bool]:
    """The text at the end of a row, and whether Tailrace is worse than a competitor. A figure with errors is not
    compared."""
    found = ratio_to(column, name)
    if column.cells[name].errors:
        return "", False
    if looks_even(column, name):
        return "even", False
    if found is None or found.low <= 0:
        return "", False
    if is_even(found):
        return "even", False
    worse = found.middle < 1 and name not in FLOOR_LABELS
    return f"{times(found.middle)}{' ▼' if worse else ''}", worse


def times(middle: float) -> str:
    """A ratio with its sign."""
    return f"{amount(middle)} {SIGN}"


def amount(middle: float) -> str:
    """A ratio's figure."""
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:,.1f}" if middle >= 10 else f"{middle:,.2f}"


def inverse(middle: float, of: str) -> str:
    """A ratio of something of which less is better, as a fraction."""
    return f"1/{middle:,.0f} of the {of}" if middle >= 10 else f"{times(1 / middle)} the {of}"


def comparison(metric: Metric, middle: float, rival: str) -> str:
    """A ratio as a clause, in the words of its unit."""
    if metric.more_is_better:
        what = "as many requests a second as" if metric.unit == "requests/s" else "the figure of"
        return f"{times(middle)} {what} {rival}"
    if metric.unit == "us":
        return f"{inverse(middle, 'processor time')} of {rival}"
    if metric.unit in MEMORY:
        return f"{inverse(middle, 'memory')} of {rival}"
    if metric.unit in ("ms", "s"):
        return f"{times(middle)} as fast as {rival}"
    return f"{inverse(middle, metric.unit)} of {rival}"


def finding(column: Column, among: frozenset[str] | None = None) -> Finding:
    """The sentence above a chart. among: the rows that are compared with Tailrace's; by default, all."""
    ours = column.ours()
    cell = column.cells.get(ours)
    compared = [name for name in rivals(column) if among is None or name in among]
    rival = next((name for name in compared if not column.cells[name].errors), None)
    if cell is None or not cell.rounds:
        return without_us(column, rival)
    figure = column.figure(ours)
    if figure is None:
        return Finding(Standing.BEHIND if rival else Standing.UNKNOWN, f"Tailrace failed: {reason(cell)}", rival)
    faults = f"Tailrace, with {cell.errors:,} error{'s' if cell.errors != 1 else ''}: " if cell.errors else ""
    if rival is None:
        alone = "no other server was measured" if not others(column) else "the only server without errors"
        shown = f"{column.metric.show(figure)} {column.metric.unit}"
        return Finding(Standing.UNKNOWN, f"{faults}{shown}" if faults else f"Tailrace: {shown}, {alone}")
    found = ratio_to(column, rival)
    name = label(rival)
    if found is None or found.low <= 0:
        return by_figures(column, figure, rival, faults)
    if is_even(found) or looks_even(column, rival):
        standing = Standing.BEHIND if faults else Standing.EVEN
        text = f"{faults}even with {name}" if faults else f"Tailrace and {name} are even"
        return Finding(standing, text, rival, found)
    ahead = found.middle > 1
    said = (
        f"{faults or 'Tailrace: '}{comparison(column.metric, found.middle, name)}, the {'next ' if ahead else ''}best"
    )
    return Finding(Standing.AHEAD if ahead and not faults else Standing.BEHIND, said, rival, found)


def by_figures(column: Column, ours: float, rival: str, faults: str) -> Finding:
    """The finding if there is no ratio, because a figure is zero or no round has both."""
    theirs = column.figure(rival)
    assert theirs is not None
    metric = column.metric
    begin = faults or "Tailrace: "
    if metric.show(ours) == metric.show(theirs):
        standing = Standing.BEHIND if faults else Standing.EVEN
        return Finding(standing, f"{begin}{metric.show(ours)} {metric.unit}, as {label(rival)}", rival)
    better = (ours > theirs) == metric.more_is_better
    text = f"{begin}{metric.show(ours)} {metric.unit}; {label(rival)}: {metric.show(theirs)} {metric.unit}"
    return Finding(Standing.AHEAD if better and not faults else Standing.BEHIND, text, rival)


def without_us(column: Column, rival: str | None) -> Finding:
    """The finding if Tailrace did not take part."""
    if rival is None:
        return Finding(Standing.UNKNOWN, "No server finished without errors" if column.cells else "Nothing measured")
    figure = column.figure(rival)
    assert figure is not None
    shown = f"{column.metric.show(figure)} {column.metric.unit}"
    return Finding(Standing.UNKNOWN, f"{label(rival)} is best with {shown}; Tailrace was not measured", rival)


def others(column: Column) -> list[str]:
    """The rows of other servers that were measured, best first."""
    floors = FLOOR_LABELS.keys()
    return [
        name for name in column.ranked() if not is_ours(name) and name not in floors and column.cells[name].rounds > 0
    ]


def rivals(column: Column) -> list[str]:
    """The other servers that have a figure."""
    return [name for name in others(column) if column.figure(name) is not None]


def better_with_errors(column: Column, rival: str | None) -> list[str]:
    """Servers whose figure is better than the rival's, but which are excluded because of their errors."""
    found = []
    for name in rivals(column):
        if name == rival:
            break
        if column.cells[name].errors:
            found.append(name)
    return found


def reason(cell: Cell) -> str:
    """Why a cell has no figure, or has errors: the first note."""
    return printable(cell.notes[0]) if cell.notes else "no complete response"


def absent(cell: Cell) -> bool:
    """Whether a server did not take part: it is not installed, or does not support this."""
    return not cell.rounds and not cell.values and not cell.errors


def tally(
    experiments: Iterable[Experiment], among: frozenset[str] | None = None
) -> dict[Standing, list[tuple[Experiment, Finding]]]:
    """The first metric of each experiment, by Tailrace's standing, the worst ratio first. among: as in `finding`;
    experiments in which none of these rows took part are left out."""
    found: dict[Standing, list[tuple[Experiment, Finding]]] = {standing: [] for standing in Standing}
    for experiment in experiments:
        column = experiment.columns[0]
        if among is None or not among.isdisjoint(others(column)):
            told = finding(column, among)
            found[told.standing].append((experiment, told))
    for each in found.values():
        each.sort(key=lambda pair: pair[1].ratio.middle if pair[1].ratio is not None else 0.0)
    return found


def configuration(column: Column, name: str) -> str:
    """The better of two rows of a server: as its documentation recommends, and at Tailrace's defaults."""
    cells = column.cells
    pair = [each for each in column.ranked() if recommended(each) == name and not absent(cells[each])]
    return min(pair, key=lambda each: (column.figure(each) is None, cells[each].errors > 0), default=name)


def recommended(name: str) -> str:
    """The row that this one repeats at Tailrace's defaults, or itself."""
    return name.removesuffix(AT_OUR_DEFAULTS)
