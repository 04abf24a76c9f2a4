"""The report's text."""

from __future__ import annotations

from tailrace.compare import report
from tailrace.compare.results import Cell, Column, Metric


def column(short: str, *notes: str) -> Column:
    return Column(Metric(short, short, short, "ms", False), {"granian": Cell(notes=list(notes))})


def test_a_note_of_several_metrics_is_told_once() -> None:
    columns = {"a": column("worst", "late"), "b": column("median", "late"), "c": column("memory", "late", "large")}
    assert report.notes(columns) == "- **granian**: worst: late. memory: late; large."


def test_no_ranking_where_rounds_do_not_agree() -> None:
    metric = Metric("pong", "Pong", "pong", "requests/s", True)
    ours = Cell(values={0: 100.0, 1: 100.0, 2: 100.0, 3: 100.0})
    even = Cell(values={0: 90.0, 1: 95.0, 2: 105.0, 3: 110.0})
    slower = Cell(values={0: 50.0, 1: 50.0, 2: 40.0, 3: 50.0})
    found = Column(metric, {"tailrace": ours, "bjoern": even, "granian": slower})
    assert report.factor(found, "bjoern").startswith("even (")
    assert report.factor(found, "granian") == "2.00 x (2.00-2.12)"


def test_what_others_used_of_the_servers_core_is_told_once_for_a_scenario() -> None:
    cell = Cell(others=[0.01, 0.03, 0.2])
    metrics = [Metric(key, key, key, "ms", False) for key in ("rate", "p99")]
    columns = {metric.key: Column(metric, {"granian": cell}) for metric in metrics}
    assert report.notes(columns) == (
        "- **granian**: core: others used 3 % of its core in half of the rounds, 20 % at most."
    )


def test_many_metrics_are_written_downwards() -> None:
    metrics = [Metric(f"m{n}", f"Metric {n}", f"m{n}", "ms", False) for n in range(5)]
    columns = [Column(metric, {"bjoern": Cell(values={0: 1.0})}) for metric in metrics]
    assert len(report.matrix(columns, ["bjoern"]).splitlines()) == 2 + 5
