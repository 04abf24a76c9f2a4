"""Writes the tables of docs/reference that follow from tables of the sources: metrics.md from that of metrics; rows of
api.md and status-json.md from those of the record of a request. `--check` only says whether they are up to date.

python tools/reference_pages.py [--check]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tailrace._tailrace import FIELDS, PHASES
from tailrace.status.table import FIGURES, TABLE, Metric

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
REGION: Final = re.compile(r"(?<=<!-- metrics: )(\w+) -->\n.*?(?=<!-- end of metrics -->)", re.DOTALL)
KEY: Final = re.compile(r"\| `(\w+)` \|")


def pages() -> dict[Path, str]:
    """The fresh text of each page. Raises ValueError where one lacks a table, or has one too many."""
    metrics, status, api = (FOLDER / name for name in ("metrics.md", "status-json.md", "api.md"))
    fields = {name: f"| `{name}` | `{kind}` | {help_} |" for name, kind, help_ in FIELDS}
    phases = {name: f"| `{name}` | {help_} |" for name, _, help_ in PHASES}
    seconds = {f"{name}_seconds": f"| `{name}_seconds` | {help_} |" for name, _, help_ in PHASES}
    parts = {f"{name}_seconds": f"| `{name}_seconds` | {help_} |" for name, is_part, help_ in PHASES if is_part}
    text = status.read_text()
    for marker, rows in (("latency", phases), ("response", seconds), ("endpoint", parts)):
        text = with_rows(text, marker, rows)
    return {
        metrics: metrics_page(metrics.read_text()),
        status: text,
        api: with_rows(api.read_text(), "record", fields),
    }


def with_rows(text: str, marker: str, rows: Mapping[str, str]) -> str:
    """The text with these rows of the table behind the marker, by their keys: where the first of them was."""
    before, comment, rest = text.partition(f"<!-- {marker} -->\n")
    table, end, after = rest.partition("\n\n")
    keys = [found[1] if (found := KEY.match(line)) else "" for line in table.splitlines()]
    places = [place for place, key in enumerate(keys) if key in rows]
    if not comment or not places:
        raise ValueError(f"there is no table behind <!-- {marker} --> with one of these keys: {', '.join(rows)}")
    kept = [line for line, key in zip(table.splitlines(), keys, strict=True) if key not in rows]
    kept[places[0] : places[0]] = rows.values()
    return "".join((before, comment, "\n".join(kept), end, after))


def metrics_page(text: str) -> str:
    """The text of metrics.md with fresh tables."""
    groups, places = {metric.group for metric in TABLE}, REGION.findall(text)
    if sorted(groups) != sorted(places):
        raise ValueError(f"it needs one table for each of: {', '.join(sorted(groups))}; it has: {', '.join(places)}")
    return REGION.sub(lambda found: f"{found[1]} -->\n{metrics_table(found[1])}", text)


def metrics_table(group: str) -> str:
    """The table of a group."""
    rows = [metrics_row(metric) for metric in TABLE if metric.group == group]
    return "".join(("| metric | type | key | meaning |\n|---|---|---|---|\n", *rows, "\n"))


def metrics_row(metric: Metric) -> str:
    """The row of a metric."""
    kind = f"{metric.kind} by `{metric.label}`" if metric.label else metric.kind
    key = f"`{metric.key}`" if metric in FIGURES else ""
    said = re.sub(r"(?<!`)((?:--|/)[a-z]+)", r"`\1`", metric.help)
    return f"| `{metric.family}` | {kind} | {key} | {f'{said} {metric.details}'.strip()} |\n"


def main() -> int:
    """Writes or checks."""
    status = 0
    for path, fresh in pages().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(fresh)
        elif path.read_text() != fresh:
            print(
                f"docs/reference/{path.name} does not follow the tables of the sources; run "
                "`.venv/bin/python tools/reference_pages.py`",
                file=sys.stderr,
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
