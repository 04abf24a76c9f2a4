"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.printable import printable
from tailrace_compare.peers import FLOOR, PEERS
from tailrace_compare.report.findings import absent, amount, is_even, label, looks_even, ratio_to, reason
from tailrace_compare.report.run import verdicts
from tailrace_compare.results import Cell, Column, Metric

NOTE_WIDTH = 90
WORDS = {True: "met", False: "MISSED", None: "-"}


def terminal(column: Column, ranked: bool = True) -> str:
    """One metric as a table, best first. If not ranked: in the order of the servers' list, without ratios."""
    metric = column.metric
    rounds = max((len(cell.values) for cell in column.cells.values()), default=0)
    sense = "more is better" if metric.more_is_better else "less is better"
    head = f"{metric.title}: {metric.unit}, {sense}, median of {rounds} round{'s' if rounds != 1 else ''}"
    rows = [("server", "median", "lowest - highest", f"{column.ours()} is" if ranked else "", "", "")]
    for name in column.ranked() if ranked else listed(column):
        cell = column.cells[name]
        figure = column.figure(name)
        shown = metric.show(figure) if figure is not None else "-"
        bang = f"! {cell.errors}" if cell.errors else ""
        ratio = factor(column, name) if ranked else ""
        rows.append((label(name), shown, range_of(cell, metric), ratio, bang, remarks(cell)))
    return "\n".join([head, *aligned(rows, right=(1, 2, 3))])


def listed(column: Column) -> list[str]:
    """The servers in the order of the list, regardless of the order of measurement."""
    places = {peer.name: place for place, peer in enumerate((*PEERS, FLOOR))}
    return sorted(column.cells, key=lambda name: places.get(name, len(places)))


def goals_terminal(columns: dict[str, Column]) -> str:
    rows = [
        (WORDS[verdict.met], columns[key].metric.title, verdict.goal, verdict.measured)
        for key, verdict in verdicts(columns)
    ]
    return "\n".join(aligned(rows))


def aligned(rows: Sequence[Sequence[str]], right: tuple[int, ...] = ()) -> list[str]:
    """Lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            text.rjust(width) if at in right else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def remarks(cell: Cell) -> str:
    """The notes of the rounds, shortened to fit a line."""
    text = printable("; ".join(cell.notes)) or ("" if cell.values else reason(cell))
    return text if len(text) <= NOTE_WIDTH or absent(cell) else f"{text[: NOTE_WIDTH - 1]}…"


def range_of(cell: Cell, metric: Metric) -> str:
    figures = cell.values.values()
    return f"{metric.show(min(figures))} - {metric.show(max(figures))}" if len(figures) > 1 else ""


def factor(column: Column, name: str) -> str:
    """How many times better Tailrace is, with quartiles; without a figure if the rounds disagree."""
    found = ratio_to(column, name)
    if looks_even(column, name) and (found is None or not is_even(found)):
        return "even"
    if found is None:
        return ""
    if is_even(found):
        return f"even ({found.low:.2f}-{found.high:.2f})"
    if found.middle >= 100:
        return f"{amount(found.middle)} x"
    return f"{found.middle:,.2f} x" + (f" ({found.low:.2f}-{found.high:.2f})" if found.low != found.high else "")
