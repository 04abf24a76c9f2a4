"""The output of a run: tables for the terminal, the JSON file, a page, a report in Markdown and the README's chart.

`run` makes and reads the document; `findings` and `parts` put it into words; `scale` and `chart` draw it; `terminal`,
`page`, `markdown` and `shapes` are the reports.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace_compare.report.markdown import markdown
from tailrace_compare.report.page import page
from tailrace_compare.report.run import ONE_ROUND, Run, document, save
from tailrace_compare.report.shapes import readme_chart
from tailrace_compare.report.terminal import goals_terminal, terminal

__all__ = ["ONE_ROUND", "document", "draw", "goals_terminal", "readme_chart", "render", "terminal", "write"]


def write(document: dict[str, Any], path: Path) -> Path:
    """Writes the JSON file, and the reports beside it; returns the path of the page."""
    save(document, path)
    return render(document, path)


def render(document: dict[str, Any], path: Path) -> Path:
    """Writes report.md and report.html beside the JSON file; returns the path of the page."""
    run = Run.of(document)
    texts = {"report.md": markdown(run, path.name), "report.html": page(run, path.name)}
    for name, text in texts.items():
        path.with_name(name).write_text(text, encoding="utf-8", errors="backslashreplace")
    return path.with_name("report.html")


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the README's chart. Raises ValueError when the run has none of its shapes, or refuses a ranking."""
    drawn = readme_chart(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(drawn, encoding="utf-8")
