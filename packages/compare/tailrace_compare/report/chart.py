"""A dot plot in HTML: a row for each server, with its name and figures as text and its marks as SVG.

Text has the same size on every screen, since only the marks scale: their positions are percentages of their strip.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.printable import printable
from tailrace_compare.report.scale import Scale, tick_label
from tailrace_compare.results import Spread

# In percent of a strip: so that marks at an end are whole.
MARGIN = 2.0


@dataclass(frozen=True)
class Row:
    """One server. kind: `ours`, `floor`, `glance` or empty. figure: its median, shown as `value`. range: its quartiles.
    ratio: what stands at the end. worse: Tailrace is. why: in place of the figure, where there is none. link: to
    where more is said."""

    name: str
    value: str = ""
    figure: float | None = None
    range: Spread | None = None
    kind: str = ""
    ratio: str = ""
    worse: bool = False
    faulty: bool = False
    why: str = ""
    link: str = ""


@dataclass(frozen=True)
class Heads:
    """What stands above the columns."""

    name: str
    value: str
    ratio: str = ""


def text(value: str) -> str:
    """Text of anyone as HTML, without characters that have no shape or change the direction of text."""
    return html.escape(printable(value))


def percent(scale: Scale, figure: float) -> str:
    return f"{MARGIN + (100 - 2 * MARGIN) * scale.place(figure):.2f}%"


def plot(rows: Sequence[Row], scale: Scale, axis: str, heads: Heads, baseline: float | None = None) -> str:
    """The rows, and the axis below them. baseline: a figure that is marked in all rows."""
    ticks = scale.ticks()
    lines = "".join(
        f'<line class="{"base" if tick == baseline else "grid"}" x1="{percent(scale, tick)}" '
        f'x2="{percent(scale, tick)}" y1="0" y2="100%"/>'
        for tick in dict.fromkeys([*ticks, *([] if baseline is None else [baseline])])
    )
    head = (
        f'<div class="row heads"><span class="name">{text(heads.name)}</span><span class="strip"></span>'
        f'<span class="value">{text(heads.value)}</span><span class="ratio">{text(heads.ratio)}</span></div>'
    )
    body = "".join(row_of(row, scale, lines) for row in rows)
    labels = "".join(tick_at(scale, tick) for tick in ticks)
    foot = f'<div class="row axis"><span class="name"></span><span class="strip">{labels}</span></div>'
    said = f'<div class="row said"><span class="name"></span><span class="strip">{text(axis)}</span></div>'
    return f'<div class="plot">{head}{body}{foot}{said}</div>'


def row_of(row: Row, scale: Scale, lines: str) -> str:
    kinds = " ".join(
        filter(
            None,
            ("row", row.kind, "faulty" if row.faulty else "", "lost" if row.worse else "", "failed" if row.why else ""),
        )
    )
    sign = '<span class="sign">▶ </span>' if row.kind == "ours" else ""
    name = f'<a href="{text(row.link)}">{text(row.name)}</a>' if row.link else text(row.name)
    begin = f'<div class="{kinds}"><span class="name">{sign}{name}</span>'
    if row.figure is None:
        return f'{begin}<span class="why"><b>✕</b> {text(row.why)}</span></div>'
    marks = f'<svg class="marks" aria-hidden="true">{lines}{mark(row, scale)}</svg>'
    value = f"{text(row.value)}{' <b>!</b>' if row.faulty else ''}"
    ratio = f'<span class="ratio">{text(row.ratio)}</span>'
    return f'{begin}<span class="strip">{marks}</span><span class="value">{value}</span>{ratio}</div>'


def mark(row: Row, scale: Scale) -> str:
    """The median, and the quartiles as a line through it."""
    assert row.figure is not None
    told = f' data-name="{text(row.name)}" data-figure="{row.figure!r}"'
    whisker = ""
    if row.range is not None and row.range.low != row.range.high:
        told += f' data-low="{row.range.low!r}" data-high="{row.range.high!r}"'
        whisker = (
            f'<line class="whisker" x1="{percent(scale, row.range.low)}" x2="{percent(scale, row.range.high)}" '
            'y1="50%" y2="50%"/>'
        )
    outside = scale.log and row.figure <= 0
    shape = SHAPES["outside" if outside else row.kind]
    return (
        f'<g class="mark"{told}>{whisker}<svg class="point" x="{percent(scale, row.figure)}" y="50%">{shape}</svg></g>'
    )


DIAMOND = '<path d="M0-7L7 0L0 7L-7 0Z"/>'
SHAPES = {
    "": '<circle r="4.5"/>',
    "ours": DIAMOND,
    "glance": DIAMOND,
    "floor": '<path d="M-1.5-8H1.5V8H-1.5Z"/>',
    # Zero on a logarithmic axis.
    "outside": '<path d="M5-6L-4 0L5 6Z"/>',
}


def tick_at(scale: Scale, tick: float) -> str:
    return f'<span class="tick" style="left:{percent(scale, tick)}">{tick_label(tick)}</span>'
