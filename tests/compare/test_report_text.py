"""What reports say in words: findings, tables for the terminal, Markdown, the document and the files."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from harness.comparisons import EDGES, MARKUP, cell, document, hostile, metric, scenario, usual

from tailrace.compare import report, scenarios
from tailrace.compare.report.findings import Finding, Standing, finding
from tailrace.compare.report.markdown import markdown, notes
from tailrace.compare.report.page import page
from tailrace.compare.report.run import Run
from tailrace.compare.report.terminal import factor
from tailrace.compare.results import Cell, Column, Metric

RATE = Metric("pong", "Pong", "pong", "requests/s", True)


def column(short: str, *said: str) -> Column:
    return Column(Metric(short, short, short, "ms", False), {"granian": Cell(notes=list(said))})


def rates(**figures: list[float]) -> Column:
    cells = {name: Cell(rounds=len(given), values=dict(enumerate(given))) for name, given in figures.items()}
    return Column(RATE, cells)


def found(unit: str = "requests/s", more: bool = True, **cells: dict[str, Any]) -> Finding:
    made = document((scenario("it", metric("it", "It", unit, more)), {"it": cells}))
    return finding(Run.of(made).experiments[0].columns[0])


def test_a_note_of_several_metrics_is_told_once() -> None:
    columns = {"a": column("worst", "late"), "b": column("median", "late"), "c": column("memory", "late", "large")}
    assert notes(columns) == "- **granian**: worst: late. memory: late; large."


def test_no_ranking_where_rounds_do_not_agree() -> None:
    table = rates(tailrace=[100.0] * 4, bjoern=[90.0, 95.0, 105.0, 110.0], granian=[50.0, 50.0, 40.0, 50.0])
    assert factor(table, "bjoern").startswith("even (")
    assert factor(table, "granian") == "2.00 x (2.00-2.12)"


def test_equal_figures_are_even() -> None:
    assert factor(rates(tailrace=[1.0], granian=[1.0]), "granian") == "even (1.00-1.00)"


def test_what_others_used_of_the_servers_core_is_told_once_for_a_scenario() -> None:
    busy = Cell(others=[0.01, 0.03, 0.2])
    metrics = [Metric(key, key, key, "ms", False) for key in ("rate", "p99")]
    columns = {metric.key: Column(metric, {"granian": busy}) for metric in metrics}
    assert (
        notes(columns) == "- **granian**: core: other processes used 3 % of its core in the median round, 20 % at most."
    )


def test_an_experiment_is_a_table_of_its_servers_best_first_under_its_finding() -> None:
    metrics = [metric("it", title="It"), metric("it_p99", title="It: p99", unit="ms", more=False)]
    cells = {"tailrace": cell(100, 100), "granian": cell(50, 50), "bjoern": cell(200, 200)}
    made = document((scenario("it", *metrics, title="It"), {"it": cells, "it_p99": cells}))
    text = markdown(Run.of(made))
    found = "Tailrace: 0.50 \N{MULTIPLICATION SIGN} as many requests a second as bjoern, the best"
    begin = text.index(f"<b>It</b><br>{found}</summary>")
    lines = [line for line in text[begin : text.index("</details>")].splitlines() if line.startswith("|")]
    assert lines[0] == "|  | requests/s | p99, ms |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| bjoern", "| **tailrace**", "| granian"]


def test_the_terminal_has_wins_and_losses_best_first_in_columns() -> None:
    lines = report.terminal(rates(tailrace=[100.0], granian=[50.0], fastwsgi=[200.0])).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["fastwsgi", "tailrace", "granian"]
    assert (lines[2].split()[-2:], lines[4].split()[-2:]) == (["0.50", "x"], ["2.00", "x"])
    ends = {re.search(r"\d+(?=  |$)", line[len("  fastwsgi") :]).end() for line in lines[2:]}  # type: ignore[union-attr]
    assert len(ends) == 1


def test_a_terminal_table_without_ranking_has_neither_order_nor_ratio() -> None:
    table = report.terminal(rates(granian=[50.0], tailrace=[100.0]), ranked=False)
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["granian", "tailrace"]
    assert " x" not in table


def test_a_terminal_obeys_nothing_that_a_server_printed() -> None:
    assert "\x1b" not in report.terminal(Column(RATE, {"granian": Cell(notes=["\x1b[2J gone"])}))


@pytest.mark.parametrize(
    ("given", "standing", "text"),
    [
        (
            {"tailrace": cell(200), "granian": cell(100), "bjoern": cell(150, errors=1)},
            Standing.AHEAD,
            "Tailrace: 2.00 x as many requests a second as granian, the next best",
        ),
        (
            {"tailrace": cell(50), "granian": cell(100)},
            Standing.BEHIND,
            "Tailrace: 0.50 x as many requests a second as granian, the best",
        ),
        (
            {"tailrace": cell(90, 110, 95, 105), "granian": cell(100, 100, 100, 100)},
            Standing.EVEN,
            "Tailrace and granian are even",
        ),
        (
            {"tailrace": cell(200, errors=4), "granian": cell(100)},
            Standing.BEHIND,
            "Tailrace, with 4 errors: 2.00 x as many requests a second as granian, the next best",
        ),
        (
            {"tailrace": cell(errors=1, notes=("gone",), rounds=1), "granian": cell(100)},
            Standing.BEHIND,
            "Tailrace failed: gone",
        ),
        ({"tailrace": cell(200)}, Standing.UNKNOWN, "Tailrace: 200 requests/s, no other server was measured"),
        ({"tailrace": cell(0), "granian": cell(3)}, Standing.BEHIND, "Tailrace: 0 requests/s; granian: 3 requests/s"),
        (
            {"granian": cell(100)},
            Standing.UNKNOWN,
            "granian is best with 100 requests/s; Tailrace was not measured",
        ),
        (
            {"tailrace": cell(200), "nginx": cell(300)},
            Standing.UNKNOWN,
            "Tailrace: 200 requests/s, no other server was measured",
        ),
    ],
)
def test_a_finding_names_the_best_other_server_without_errors(
    given: dict[str, Any], standing: Standing, text: str
) -> None:
    told = found(**given)
    assert (told.standing, told.text.replace("\N{MULTIPLICATION SIGN}", "x")) == (standing, text)


@pytest.mark.parametrize(
    ("unit", "ours", "theirs", "text"),
    [
        ("ms", 5, 10, "2.00 x as fast as granian, the next best"),
        ("us", 10, 5, "2.00 x the processor time of granian, the best"),
        ("MiB", 5, 10, "0.50 x the memory of granian, the next best"),
        ("us", 1, 100, "1/100 of the processor time of granian, the next best"),
        ("calls", 3, 6, "0.50 x the calls of granian, the next best"),
    ],
)
def test_less_is_said_in_the_words_of_its_unit(unit: str, ours: float, theirs: float, text: str) -> None:
    told = found(unit, False, tailrace=cell(ours), granian=cell(theirs))
    assert told.text.replace("\N{MULTIPLICATION SIGN}", "x") == f"Tailrace: {text}"


def test_a_negative_growth_has_no_ratio() -> None:
    told = found("MB", False, tailrace=cell(-1, -2), granian=cell(5, 6))
    assert (told.standing, told.ratio) == (Standing.AHEAD, None)


def test_a_document_tells_all_that_reports_need_of_its_scenarios() -> None:
    (pong,) = scenarios.by_name(["pong_c64"])
    measured = {each.key: Column(each, {"tailrace": Cell(rounds=1, values={0: 5.0})}) for each in pong.metrics}
    made = json.loads(json.dumps(report.document(measured, {"command": "x", "rounds": 1, "seconds": 1}, {}, 1.0)))
    (told,) = made["scenarios"]
    assert told["name"] == "pong_c64"
    assert told["load"] == pong.reproduce()
    assert "served.shapes:pong" in told["commands"]["tailrace"]
    assert made["reasons"]["tailrace"]
    (experiment,) = Run.of(made).experiments
    assert (experiment.title, experiment.group) == (pong.title, pong.group)
    assert experiment.columns[0].metric.show(5.0) == pong.metrics[0].show(5.0)


def test_a_scenario_says_what_its_figures_mean() -> None:
    pong = copy.copy(scenarios.SCENARIOS[0])
    object.__setattr__(pong, "meaning", "It matters.")
    measured = {each.key: Column(each, {"tailrace": Cell(rounds=1, values={0: 5.0})}) for each in pong.metrics}
    made = report.document(measured, {}, {}, 1.0, [pong])
    assert Run.of(made).experiments[0].meaning == "It matters."


def test_figures_of_no_scenario_are_shown_all_the_same() -> None:
    made = usual()
    made["scenarios"] = made["scenarios"][:1]
    run = Run.of(made)
    assert set(run.columns) == set(made["columns"])


def test_frameworks_with_a_worker_for_each_core_lead() -> None:
    made = usual()
    pinned = scenario("flask_c16", metric("flask_c16"), title="Flask, 16 connections")
    made["scenarios"].append(pinned)
    made["columns"]["flask_c16"] = {"title": "", "unit": "", "more_is_better": True, "servers": {"tailrace": cell(1)}}
    run = Run.of(made)
    assert [each.name for each in run.lead()] == ["flask_cores"]
    text = markdown(run)
    assert text.index("## Flask and Django in production: a worker per core") < text.index("## Small responses")


def test_frameworks_on_one_core_lead_under_that_name_where_nothing_else_is_measured() -> None:
    made = document((scenario("django_c16", metric("django_c16")), {"django_c16": {"tailrace": cell(1)}}))
    assert "## Flask and Django, on one core" in markdown(Run.of(made))


def test_flask_and_django_are_found_in_whatever_group_they_are() -> None:
    name = "everyday_django_json"
    made = document((scenario(name, metric(name), group="In production: a worker per core"), {name: {}}))
    assert Run.of(made).lead_is_usual()


def test_a_run_that_goes_on_says_so() -> None:
    assert "the run is not complete" in markdown(Run.of(usual(run={"complete": False})))
    assert "the run is not complete" not in markdown(Run.of(usual(run={"complete": True})))


def test_a_run_of_one_round_says_that_small_differences_mean_nothing() -> None:
    def measured(*figures: float, **more: Any) -> str:
        cells = {"tailrace": cell(*figures), "granian": cell(*figures)}
        return markdown(Run.of(document((scenario("it", metric("it")), {"it": cells}), **more)))

    assert "a single round has no quartiles" in measured(101)
    assert "a single round has no quartiles" not in measured(101, 102)
    assert "a single round has no quartiles" not in measured(101, noise={"refused": True, "reason": "31 %"})


@pytest.mark.parametrize(
    ("noise", "why"),
    [
        (None, None),
        ({"refused": False, "reason": "calm"}, None),
        ({"refused": True, "reason": "31 %"}, "31 %"),
    ],
)
def test_a_run_says_whether_it_ranks(noise: object, why: str | None) -> None:
    assert Run.of(usual(noise=noise)).refusal == why


def test_markdown_of_a_noisy_run_has_no_ratio() -> None:
    text = markdown(Run.of(EDGES["noisy"]()))
    assert "No ranking" in text
    assert not re.search(r"\d x\b|even|\N{MULTIPLICATION SIGN}|ahead|behind", text)


def test_markdown_is_linked_to_its_figures_and_names_losses() -> None:
    text = markdown(Run.of(usual()), "comparison.json")
    assert "[comparison.json](comparison.json)" in text
    assert "- words: Tailrace: 0.50 \N{MULTIPLICATION SIGN} as fast as granian, the best" in text
    assert "90 **!**" in text


def test_markdown_is_no_markup_of_others() -> None:
    text = markdown(Run.of(hostile()))
    outside = re.sub(r"`[^`]*`", "", text)
    assert "<script" not in outside
    assert "<img" not in outside
    assert "\x1b" not in text
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert all(width in (3, 4, 5, 6) for width in widths)


@pytest.mark.parametrize("edge", EDGES)
def test_all_files_are_written_of_any_run(edge: str, tmp_path: Path) -> None:
    made = report.write(EDGES[edge](), tmp_path / "deep" / "run.json")
    assert made == tmp_path / "deep" / "report.html"
    assert sorted(path.name for path in made.parent.iterdir()) == ["report.html", "report.md", "run.json"]
    assert json.loads((made.parent / "run.json").read_text()) == EDGES[edge]()


def test_a_file_from_elsewhere_chooses_no_number_of_digits() -> None:
    made = document((scenario("it", metric("it", digits=10**9)), {"it": {"tailrace": cell(1)}}))
    assert Run.of(made).experiments[0].columns[0].metric.show(1.0) == "1.000000000"


def test_text_that_no_encoding_has_is_written_all_the_same(tmp_path: Path) -> None:
    made = usual(when="\ud800")
    report.write(made, tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["when"] == "\ud800"


def test_the_time_of_a_run_is_no_markup() -> None:
    assert "[here](" not in markdown(Run.of(usual(when="[here](http://example.com/)")))


def test_markup_is_in_no_page(tmp_path: Path) -> None:
    page = report.write(hostile(), tmp_path / "run.json").read_text()
    assert MARKUP not in page
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_a_report_names_the_experiments_for_which_the_run_had_no_time() -> None:
    said = "Not measured for lack of time: A crowd; \\*Markup\\*."
    made = {**usual(run={"complete": True}), "not_measured": ["A crowd", "*Markup*"]}
    assert said in markdown(Run.of(made))
    assert "Not measured for lack of time: A crowd; *Markup*." in page(Run.of(made))
    assert "Not measured" not in markdown(Run.of(usual(run={"complete": True})))
