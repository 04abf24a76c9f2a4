"""Writes the tables of docs/reference/metrics.md from the table of metrics; `--check` only says whether they are up to
date.

python tools/metrics_page.py [--check]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tailrace.status.table import FIGURES, TABLE, Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
REGION = re.compile(r"(?<=<!-- metrics: )(\w+) -->\n.*?(?=<!-- end of metrics -->)", re.DOTALL)


def page(text: str) -> str:
    """The text of the page with fresh tables. Raises ValueError where the page lacks a group, or has one too many."""
    groups, places = {metric.group for metric in TABLE}, REGION.findall(text)
    if sorted(groups) != sorted(places):
        raise ValueError(f"it needs one table for each of: {', '.join(sorted(groups))}; it has: {', '.join(places)}")
    return REGION.sub(lambda found: f"{found[1]} -->\n{table(found[1])}", text)


def table(group: str) -> str:
    """The table of a group."""
    rows = [row(metric) for metric in TABLE if metric.group == group]
    return "".join(("| metric | type | key | meaning |\n|---|---|---|---|\n", *rows, "\n"))


def row(metric: Metric) -> str:
    """The row of a metric."""
    kind = f"{metric.kind} by `{metric.label}`" if metric.label else metric.kind
    key = f"`{metric.key}`" if metric in FIGURES else ""
    said = re.sub(r"(?<!`)((?:--|/)[a-z]+)", r"`\1`", metric.help)
    return f"| `{metric.family}` | {kind} | {key} | {f'{said} {metric.details}'.strip()} |\n"


def main() -> int:
    """Writes or checks."""
    before = PAGE.read_text()
    fresh = page(before)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(fresh)
        return 0
    if before == fresh:
        return 0
    print(
        "docs/reference/metrics.md does not follow the table of metrics; run `.venv/bin/python tools/metrics_page.py`",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
