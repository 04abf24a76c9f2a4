"""What reports say in words: findings, tables for the terminal, Markdown, the document and the files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from comparisons import EDGES, MARKUP, cell, document, hostile, metric, scenario
from tailrace_compare import report, scenarios
from tailrace_compare.peers import AT_OUR_DEFAULTS
from tailrace_compare.report.findings import Finding, Standing, finding
from tailrace_compare.report.markdown import figures, markdown, notes, summary
from tailrace_compare.report.run import Run
from tailrace_compare.report.terminal import factor, terminal
from tailrace_compare.results import Cell, Column, Metric

RATE = Metric("pong", "Pong", "pong", "requests/s", True)


def rates(**figures: list[float]) -> Column:
    cells = {name: Cell(rounds=len(given), values=dict(enumerate(given))) for name, given in figures.items()}
    return Column(RATE, cells)


def found(unit: str = "requests/s", more: bool = True, **cells: dict[str, Any]) -> Finding:
    made = document((scenario("it", metric("it", "It", unit, more)), {"it": cells}))
    return finding(Run.of(made).experiments[0].columns[0])


def test_no_ranking_where_rounds_do_not_agree() -> None:
    table = rates(tailrace=[100.0] * 4, bjoern=[90.0, 95.0, 105.0, 110.0], granian=[50.0, 50.0, 40.0, 50.0])
    assert factor(table, "bjoern").startswith("even (")
    assert factor(table, "granian") == "2.00 x (2.00-2.12)"


def test_figures_that_are_shown_as_zero_are_even() -> None:
    """Neither is worse: readers cannot tell which of two figures shown as 0.0 MB is lower."""
    memory = Metric("kept", "Kept", "kept", "MB", False, 1)
    cells = {"tailrace": {0: 0.04}, "granian": {0: 0.01}, "bjoern": {0: 0.0}, "waitress": {0: 3.0}}
    kept = Column(memory, {name: Cell(rounds=1, values=values) for name, values in cells.items()})
    assert [factor(kept, name) for name in ("granian", "bjoern", "waitress")] == ["even", "even", "75.00 x"]
    cells = {"tailrace": {0: 3.01}, "granian": {0: 2.99}}
    close = Column(memory, {name: Cell(rounds=1, values=values) for name, values in cells.items()})
    assert factor(close, "granian").startswith("0.99 x")
    told = finding(kept)
    assert (told.standing, told.text) == (Standing.EVEN, "Tailrace: 0.0 MB, as bjoern")


def test_every_dash_has_its_reason_and_rows_are_sorted() -> None:
    cells = {
        "waitress": Cell(rounds=1),
        "granian": Cell(rounds=1, values={0: 90.0}),
        "tailrace": Cell(rounds=1, notes=["reset"]),
    }
    silent = Column(RATE, cells)
    for ranked in (True, False):
        lines = terminal(silent, ranked).splitlines()[2:]
        names = ["granian", "waitress", "tailrace"] if ranked else ["tailrace", "granian", "waitress"]
        assert [line.split()[0] for line in lines] == names
        dashes = [line for line in lines if line.split()[1] == "-"]
        assert [line.split("  ")[-1].strip() for line in dashes] == (
            ["no complete response", "reset"] if ranked else ["reset", "no complete response"]
        )
    assert "- **waitress**: pong: no complete response." in notes({"pong": silent})
    assert "- **tailrace**: pong: reset." in notes({"pong": silent})


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
        ({"granian": cell(100)}, Standing.UNKNOWN, "granian is best with 100 requests/s; Tailrace was not measured"),
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


def test_a_report_says_what_limits_its_figures() -> None:
    def told(*figures: float, **more: Any) -> str:
        cells = {"tailrace": cell(*figures), "granian": cell(*figures)}
        return markdown(Run.of(document((scenario("it", metric("it")), {"it": cells}), **more)))

    assert "the run is not complete" in told(101, 102, run={"complete": False})
    assert "a single round has no quartiles" in told(101)
    assert "Not measured for lack of time: A crowd; \\*Markup\\*." in told(101, not_measured=["A crowd", "*Markup*"])
    assert not re.search("not complete|single round has|Not measured", told(101, 102, run={"complete": True}))


def test_markdown_of_a_noisy_run_has_no_ratio() -> None:
    text = markdown(Run.of(EDGES["noisy"]()))
    assert "No ranking" in text
    assert not re.search(r"\d x\b|even|\N{MULTIPLICATION SIGN}|ahead|behind", text)


def test_markdown_is_no_markup_of_others() -> None:
    text = markdown(Run.of(hostile()))
    outside = re.sub(r"`[^`]*`", "", text)
    assert "<script" not in outside
    assert "<img" not in outside
    assert "\x1b" not in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_the_summary_has_one_row_for_each_server_with_its_best_configuration() -> None:
    def pong(**cells: dict[str, Any]) -> dict[str, Any]:
        return {"tailrace": cell(100), "gunicorn sync": cell(10), **cells}

    second = f"granian{AT_OUR_DEFAULTS}"
    measured = {
        "a": pong(granian=cell(50), bjoern=cell(150), nginx=cell(300)),
        "b": pong(granian=cell(100), bjoern=cell(100), **{second: cell(200)}),
        "c": pong(granian=cell(400, errors=1), bjoern=cell(errors=1, rounds=1), **{second: cell(125)}),
        "d": {"tailrace": cell(100), "gunicorn gthread": cell(101)},
    }
    made = document(*((scenario(key, metric(key)), {key: cells}) for key, cells in measured.items()))
    rows = [
        line for line in summary(Run.of(made)).splitlines() if re.match(r"\| (granian|bjoern|gunicorn|nginx)", line)
    ]
    assert [row.replace("\N{MULTIPLICATION SIGN}", "x") for row in rows] == [
        f"| granian | 1 | 0 | 2 | 0 | 0.50 x: b ({second}) |",
        "| gunicorn | 3 | 0 | 1 | 0 | 0.99 x: d (gunicorn gthread) |",
        "| bjoern | 0 | 1 | 1 | 1 | 0.67 x: a |",
    ]


def test_figures_have_one_column_for_each_recommended_row_and_mark_the_other_configuration() -> None:
    second = f"granian{AT_OUR_DEFAULTS}"
    rates = {"tailrace": cell(100), "granian": cell(50), second: cell(80)}
    times = {"tailrace": cell(4), "granian": cell(3), second: cell(8)}
    told = scenario("it", metric("it"), metric("it_p50", "it: p50", "ms", False))

    def rows(made: dict[str, Any]) -> list[str]:
        text = figures(Run.of(made)).partition("</details>")[0].replace("\N{MULTIPLICATION SIGN}", "x")
        return [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]

    # Both figures are those of one configuration.
    assert rows(document((told, {"it": rates, "it_p50": times}))) == [
        "|  | **tailrace** | granian |",
        "| requests/s | 100 | 80 †<br>1.25 x |",
        "| p50, ms | 4 | 8 †<br>2.00 x |",
    ]
    noisy = document((told, {"it": rates, "it_p50": times}), noise={"refused": True, "reason": "Too busy."})
    assert rows(noisy) == [
        f"|  | **tailrace** | granian | {second} |",
        "| requests/s | 100 | 50 | 80 |",
        "| p50, ms | 4 | 3 | 8 |",
    ]
    failed = {"tailrace": cell(100), "granian": cell(50), second: cell(80, errors=2)}
    assert rows(document((scenario("it", metric("it")), {"it": failed})))[1] == ("| requests/s | 100 | 50<br>2.00 x |")


@pytest.mark.parametrize("edge", EDGES)
def test_all_files_are_written_of_any_run(edge: str, tmp_path: Path) -> None:
    made = report.write(EDGES[edge](), tmp_path / "deep" / "run.json")
    assert made == tmp_path / "deep" / "report.html"
    assert sorted(path.name for path in made.parent.iterdir()) == ["report.html", "report.md", "run.json"]
    assert json.loads((made.parent / "run.json").read_text()) == EDGES[edge]()


def test_markup_is_in_no_page(tmp_path: Path) -> None:
    page = report.write(hostile(), tmp_path / "run.json").read_text()
    assert MARKUP not in page
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
