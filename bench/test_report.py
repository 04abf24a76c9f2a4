"""The report's text."""

from __future__ import annotations

from bench import report
from bench.results import Cell, Column, Metric


def column(short: str, *notes: str) -> Column:
    return Column(Metric(short, short, short, "ms", False), {"granian": Cell(notes=list(notes))})


def test_a_note_of_several_metrics_is_told_once() -> None:
    columns = {"a": column("worst", "late"), "b": column("median", "late"), "c": column("memory", "late", "large")}
    assert report.notes(columns) == "- **granian**: worst: late. memory: late; large."
