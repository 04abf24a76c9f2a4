"""The comparison's chart: the time that each server spends on each shape of response, as one SVG.

An image on a page knows neither the page's width nor its theme: the drawing is narrow, so that a phone hardly shrinks
its text, and has a background of its own, which follows the colors that the system prefers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from tailrace_compare.peers import NGINX, TAILRACE
from tailrace_compare.report.chart import text
from tailrace_compare.report.findings import Standing, finding, label, others, times
from tailrace_compare.report.run import Run
from tailrace_compare.report.scale import Scale, tick_label
from tailrace_compare.results import ITERATION, Column

# From the shape that everybody measures to the one that nobody does.
SHAPES = {
    "pong_c64": "Pong, 15 header fields",
    "flask_c16": "Flask hello",
    "django_c16": "Django hello",
    "page_c16": "Page of 21 KB, read",
    "list_c4": "688 KB as a list",
    "file_c4": "688 KB as a file object",
    "wrapper_c4": "688 KB by file_wrapper",
    "blocks_c64": "25 blocks of 4 KiB",
    "words": "2.5 MB in 128-byte blocks",
    "bytes": "688,128 one-byte blocks",
    "upload": "Upload of 20 MB",
}
WIDTH = 480
MARGIN = 18
TOP = 148
ROW = 54
STRIP = 26
# The height of a further line of small text.
LINE = 16
# How wide a character is at most on average, in small text and in the name of a shape. No text is wider than the chart.
SMALL = 7.1
STRONG = 9.2

STYLE = """
text { font: 15px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; fill: #1b2026 }
.back { fill: #ffffff; stroke: #d9dee4 } .title { font-size: 20px; font-weight: 700 }
.small { font-size: 13px; fill: #56606b } .ours { fill: #0a58a8; stroke: #0a58a8 } text.ours { stroke: none }
.strong { font-weight: 700 } .bad { fill: #a8330b } .grid { stroke: #d9dee4 }
.dot { fill: #66717d; stroke: #66717d; stroke-width: 1.5 } .floor { fill: #1b2026 } .faulty { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e3e8ee } .back { fill: #0f1317; stroke: #303943 } .small { fill: #9ca8b4 }
  .ours { fill: #6db5ff; stroke: #6db5ff } .bad { fill: #ff9d78 } .grid { stroke: #303943 }
  .dot { fill: #a3afbb; stroke: #a3afbb } .floor { fill: #e3e8ee } .faulty { fill: #0f1317 }
}
"""


def readme_chart(document: Mapping[str, Any]) -> str:
    """The SVG. Raises ValueError when the run has none of the shapes, or refuses a ranking."""
    run = Run.of(dict(document))
    if run.refusal is not None:
        raise ValueError(f"a run without a ranking has no chart: {run.refusal}")
    columns = run.columns
    shapes = {key: columns[key] for key in SHAPES if key in columns}
    known = [time for key, column in shapes.items() for time in all_times(columns, key, column).values()]
    if not known:
        raise ValueError("the run has none of the chart's shapes: " + ", ".join(SHAPES))
    scale = Scale.of(known, log=True)
    tops, bottom = [], TOP
    for key, column in shapes.items():
        tops.append(bottom)
        bottom += ROW + LINE * (len(failed(column)) + is_below(key, column))
    height = bottom + 92
    ticks = scale.ticks()
    parts = [f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>', head(shapes)]
    parts += [
        f'<line class="grid" x1="{at(scale, tick):.1f}" x2="{at(scale, tick):.1f}" y1="{TOP - 6}" y2="{bottom}"/>'
        for tick in ticks
    ]
    parts += [shape(run, scale, key, column, top) for (key, column), top in zip(shapes.items(), tops, strict=True)]
    parts += [
        f'<text class="small" x="{at(scale, tick):.1f}" y="{bottom + 16}" text-anchor="{anchor(scale, tick)}">'
        f"{tick_label(tick)}</text>"
        for tick in ticks
    ]
    parts.append(caption(run, bottom))
    title = f"Time per response by shape, {title_of(shapes)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-labelledby="title description"><title id="title">{text(title)}</title>'
        f'<desc id="description">{text(described(shapes))}</desc><style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def milliseconds(column: Column, name: str) -> float | None:
    """The time of one response: as measured, or derived from a rate."""
    figure = column.figure(name)
    if figure is None or figure <= 0:
        return None
    return 1000 / figure if column.metric.more_is_better else figure


def all_times(columns: Mapping[str, Column], key: str, column: Column) -> dict[str, float]:
    """Of every row that is drawn: Tailrace with threads, the others, the floors. The floor without a server is in the
    column that counts the time within the application."""
    names = [TAILRACE, *others(column), NGINX]
    found = {name: time for name in names if (time := milliseconds(column, name)) is not None}
    within = columns.get(f"{key}_app")
    floor = milliseconds(within, ITERATION) if within is not None else None
    return found if floor is None else {**found, ITERATION: floor}


def at(scale: Scale, figure: float) -> float:
    return MARGIN + 8 + (WIDTH - 2 * MARGIN - 16) * scale.place(figure)


def anchor(scale: Scale, tick: float) -> str:
    place = scale.place(tick)
    return "start" if place < 0.04 else "end" if place > 0.96 else "middle"


def title_of(shapes: Mapping[str, Column]) -> str:
    """What was found, counted."""
    standings = [finding(column).standing for column in shapes.values()]
    words = {Standing.AHEAD: "ahead in", Standing.EVEN: "even in", Standing.BEHIND: "behind in"}
    counts = [f"{word} {number}" for each, word in words.items() if (number := standings.count(each))]
    return f"Tailrace {', '.join(counts)} of {len(shapes)}" if counts else f"{len(shapes)} shapes"


def head(shapes: Mapping[str, Column]) -> str:
    rivals = {name for column in shapes.values() for name in others(column) if column.figure(name) is not None}
    dots = "dot" if len(rivals) == 1 else "dots"
    beside = f"{len(rivals)} {dots}: configurations of other servers; right: against the best"
    y = 106
    return (
        f'<text class="title" x="{MARGIN}" y="34">Time per response, by its shape</text>'
        f'<text class="strong" x="{MARGIN}" y="57">{text(title_of(shapes))}</text>'
        f'<text class="small" x="{MARGIN}" y="78">{text(beside)}</text>'
        f'<path class="ours" transform="translate({MARGIN + 7},{y})" d="M0-7L7 0L0 7L-7 0Z"/>'
        f'<text class="ours strong" x="{MARGIN + 20}" y="{y + 5}">Tailrace</text>'
        f'<circle class="dot" cx="{MARGIN + 112}" cy="{y}" r="4.5"/>'
        f'<text class="small" x="{MARGIN + 122}" y="{y + 5}">other</text>'
        f'<circle class="dot faulty" cx="{MARGIN + 178}" cy="{y}" r="4.5"/>'
        f'<text class="small" x="{MARGIN + 188}" y="{y + 5}">with errors</text>'
        f'<rect class="floor" x="{MARGIN + 279}" y="{y - 8}" width="3" height="16"/>'
        f'<text class="small" x="{MARGIN + 289}" y="{y + 5}">nginx, or no server</text>'
    )


def failed(column: Column) -> list[str]:
    """The servers without a complete response, in lines; none: there is no such server."""
    silent = [label(name) for name in [TAILRACE, *others(column)] if has_failed(column, name)]
    if not silent:
        return []
    named, rest = silent[:3], len(silent) - 3
    words = f"no complete response: {', '.join(named)}{f' and {rest} more' if rest > 0 else ''}"
    return textwrap.wrap(words, int((WIDTH - 2 * MARGIN) / SMALL))


def has_failed(column: Column, name: str) -> bool:
    cell = column.cells.get(name)
    return cell is not None and cell.rounds > 0 and not cell.values


def shape(run: Run, scale: Scale, key: str, column: Column, y: int) -> str:
    """One shape: its name, how Tailrace stands, and a mark for every server on a line of its own."""
    name = text(SHAPES[key])
    below = LINE * is_below(key, column)
    parts = [f'<text class="strong" x="{MARGIN}" y="{y + 12}">{name}</text>', standing(column, y + 12 + below)]
    middle = y + below + STRIP
    points = all_times(run.columns, key, column)
    for server in (NGINX, ITERATION):
        if server in points:
            left = at(scale, points[server]) - 1.5
            parts.append(f'<rect class="floor" x="{left:.1f}" y="{middle - 8}" width="3" height="16"/>')
    for server, time in points.items():
        if server not in (TAILRACE, NGINX, ITERATION):
            faulty = " faulty" if column.cells[server].errors else ""
            title = f"<title>{text(label(server))}: {time:,.3g} ms</title>"
            x = f"{at(scale, time):.1f}"
            parts.append(f'<circle class="dot{faulty}" cx="{x}" cy="{middle}" r="4.5">{title}</circle>')
    if TAILRACE in points:
        faulty = " faulty" if column.cells[TAILRACE].errors else ""
        x = f"{at(scale, points[TAILRACE]):.1f}"
        title = f"<title>Tailrace: {points[TAILRACE]:,.3g} ms</title>"
        parts.append(
            f'<path class="ours{faulty}" transform="translate({x},{middle})" d="M0-7L7 0L0 7L-7 0Z">{title}</path>'
        )
    for number, line in enumerate(failed(column)):
        parts.append(f'<text class="small bad" x="{MARGIN}" y="{middle + 22 + LINE * number}">{text(line)}</text>')
    return "".join(parts)


def is_below(key: str, column: Column) -> bool:
    """Whether there is no room for how Tailrace stands beside the name of the shape."""
    return STRONG * len(SHAPES[key]) + SMALL * len(compared(column)) > WIDTH - 2 * MARGIN


def standing(column: Column, y: int) -> str:
    """At the end of a line: the ratio to the best other server."""
    tone = " bad" if finding(column).standing is Standing.BEHIND else ""
    words = text(compared(column))
    return f'<text class="small{tone}" x="{WIDTH - MARGIN}" y="{y}" text-anchor="end">{words}</text>'


def compared(column: Column) -> str:
    """The ratio to the best other server, in words."""
    told = finding(column)
    if told.rival is None:
        return "failed" if told.standing is Standing.BEHIND else ""
    if told.standing is Standing.EVEN:
        return f"even with {label(told.rival)}"
    if told.ratio is not None:
        return f"{times(told.ratio.middle)} {label(told.rival)}"
    return f"beside {label(told.rival)}"


def caption(run: Run, bottom: int) -> str:
    lines = [
        "milliseconds for one response, log scale; left is better",
        f"One core; medians of up to {run.rounds()} interleaved rounds; {run.when[:10]}",
        ", ".join(filter(None, (run.machine.get("processor", ""), run.machine.get("python", "")))),
    ]
    return "".join(
        f'<text class="small" x="{MARGIN}" y="{bottom + 38 + 19 * number}">{text(line)}</text>'
        for number, line in enumerate(lines)
    )


def described(shapes: Mapping[str, Column]) -> str:
    """The chart in words."""
    return " ".join(f"{SHAPES[key]}: {finding(column).text}." for key, column in shapes.items())
