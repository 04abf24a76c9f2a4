"""One chart of a run: the time that each server spends on each shape of response."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.compare.peers import NGINX, OURS, TAILRACE
from tailrace.compare.report import columns_of, order
from tailrace.compare.results import FLOORS, ITERATION, Column

# From the shape that everybody measures to the one that nobody does.
SHAPES = {
    "pong_c64": "pong, 15 header fields",
    "flask_c16": "Flask hello",
    "django_c16": "Django hello",
    "page_c16": "page of 21 KB, read",
    "list_c4": "688 KB as a list",
    "file_c4": "688 KB as a file object",
    "wrapper_c4": "688 KB by file_wrapper",
    "blocks_c64": "25 blocks of 4 KiB",
    "words": "2.5 MB in 128-byte blocks",
    "bytes": "688,128 one-byte blocks",
    "upload": "upload of 20 MB",
}
MARKERS = "osD^v<>PXphd8"
ACCENT = "#d7263d"


def milliseconds(column: Column, name: str) -> float | None:
    """The time of one response: as measured, or what a rate comes to."""
    figure = column.figure(name)
    if figure is None or figure <= 0:
        return None
    return 1000 / figure if column.metric.more_is_better else figure


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the chart. Raises ImportError without matplotlib, ValueError when the run has none of the shapes."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tailrace", "font.family": "sans-serif"})
    columns = columns_of(document)
    shapes = [key for key in SHAPES if key in columns]
    if not shapes:
        raise ValueError("the run has none of the chart's shapes: " + ", ".join(SHAPES))
    peers = [name for name in order(columns) if name not in (*OURS, *FLOORS)]
    peers = [name for name in peers if any(columns[key].figure(name) is not None for key in shapes)]
    figure, axes = pyplot.subplots(figsize=(9.5, 1.6 + 0.52 * len(shapes)))
    colours = pyplot.get_cmap("tab20")
    rows = {key: len(shapes) - 1 - at for at, key in enumerate(shapes)}
    for at, name in enumerate(peers):
        scatter(axes, columns, rows, name, marker=MARKERS[at % len(MARKERS)], color=colours(at % 20), s=30, alpha=0.85)
    scatter(axes, columns, rows, NGINX, label="nginx, sendfile", marker="|", color="black", s=260, linewidth=1.6)
    floors = {key.removesuffix("_app"): column for key, column in columns.items() if key.endswith("_app")}
    scatter(axes, floors, rows, ITERATION, label="iterating, no server", marker="|", color="gray", s=260, linewidth=1.6)
    scatter(axes, columns, rows, TAILRACE, marker="o", color=ACCENT, s=75, zorder=5, edgecolor="white")
    for key, row in rows.items():
        silent = [name for name in peers if name in columns[key].cells and columns[key].figure(name) is None]
        if silent:
            text = f"no whole answer: {', '.join(silent)}"
            axes.annotate(text, (1.0, row - 0.36), xycoords=("axes fraction", "data"), ha="right", size=6, color="#666")
    axes.set_xscale("log")
    axes.set_yticks(list(rows.values()), [label(columns[key], SHAPES[key]) for key in rows])
    axes.set_ylim(-0.6, len(shapes) - 0.4)
    axes.set_xlabel("milliseconds for one response on one core, log scale; left is better")
    axes.grid(axis="x", which="major", color="#ddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.11), ncols=5, frameon=False, fontsize=8)
    axes.set_title(footnote(document), size=7, color="#666", loc="right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    pyplot.close(figure)


def scatter(axes: Any, columns: dict[str, Column], rows: dict[str, int], name: str, **style: Any) -> None:
    style.setdefault("label", name)
    points = {key: time for key in rows if key in columns and (time := milliseconds(columns[key], name))}
    clean = [key for key in points if not columns[key].cells[name].errors]
    faulty = [key for key in points if columns[key].cells[name].errors]
    if not points:
        return
    # With no clean point too: a server of which every figure has errors stands in the legend all the same.
    axes.scatter([points[key] for key in clean], [rows[key] for key in clean], **style)
    if not faulty:
        return
    hollow = {**style, "label": None, "facecolors": "none", "edgecolors": style.pop("color")}
    hollow.pop("color")
    hollow.pop("edgecolor", None)
    axes.scatter([points[key] for key in faulty], [rows[key] for key in faulty], **hollow)


def label(column: Column, text: str) -> str:
    """The shape, and where its time comes from."""
    return f"{text}\n{'1 / (requests/s)' if column.metric.more_is_better else 'one fetch by curl'}"


def footnote(document: dict[str, Any]) -> str:
    facts = document["machine"]
    where = f"{facts['processor']}, {facts['python']}, {document['when'][:10]}"
    return f"{where}; medians of interleaved rounds; hollow: with errors"
