"""What becomes of a run: tables for the terminal, the JSON file, a page, a report in Markdown and the README's chart.

`run` makes and reads the document; `findings` and `parts` say in words what is in it; `scale` and `chart` draw it;
`terminal`, `page`, `markdown` and `shapes` are the reports.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.compare.report.markdown import markdown
from tailrace.compare.report.page import page
from tailrace.compare.report.run import Run, document, save
from tailrace.compare.report.shapes import readme_chart
from tailrace.compare.report.terminal import goals_terminal, terminal

__all__ = ["document", "draw", "goals_terminal", "readme_chart", "terminal", "write"]


def write(document: dict[str, Any], path: Path) -> Path:
    """Writes the JSON file, and report.md and report.html beside it; returns the path of the page."""
    save(document, path)
    run = Run.of(document)
    path.with_name("report.md").write_text(markdown(run, path.name))
    made = path.with_name("report.html")
    made.write_text(page(run, path.name))
    return made


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the README's chart. Raises ValueError when the run has none of its shapes, or refuses a ranking."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(readme_chart(document))
