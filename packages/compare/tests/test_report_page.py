"""The page of a run, in Chromium: on every screen, on paper, and of runs that went wrong."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparisons import EDGES, usual
from harness.browser import Browser
from tailrace_compare import report

pytestmark = pytest.mark.nightly
WIDTHS = (390, 768, 1280)
Shown = Callable[[dict[str, Any]], None]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Shown:
    """Opens the page of a document."""

    def shown(document: dict[str, Any]) -> None:
        browser.open(report.write(document, tmp_path / "run.json").as_uri())

    return shown


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.value(
        f"Array.from(document.querySelectorAll({json.dumps(selector)}), each => each.innerText.trim())"
    )
    return found


@pytest.mark.parametrize("edge", EDGES)
def test_no_page_is_wider_than_its_screen(browser: Browser, show: Shown, edge: str) -> None:
    document = EDGES[edge]()
    for width in WIDTHS:
        browser.emulate(width=width)
        show(document)
        # Tables too wide for a phone scroll by themselves.
        browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert browser.value("document.documentElement.scrollWidth") <= width
        beyond = browser.value(
            "Array.from(document.querySelectorAll('main *, header *, nav *'))"
            ".filter(each => !each.closest('.scroll') && !each.closest('.hidden') && !each.closest('.marks')"
            " && each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)"
            ".map(each => each.outerHTML.slice(0, 120))"
        )
        assert beyond == []
    assert browser.problems == []


def test_the_page_asks_for_nothing_and_runs_nothing(browser: Browser, show: Shown) -> None:
    for edge in EDGES.values():
        show(edge())
        assert browser.value("performance.getEntriesByType('resource').length") == 0
        assert browser.value("document.scripts.length + document.querySelectorAll('iframe, img, object').length") == 0
        outside = "Array.from(document.querySelectorAll('[href], [src]')).filter(each => /^(https?:)?\\/\\//.test("
        assert browser.value(outside + "each.getAttribute('href') ?? each.getAttribute('src'))).length") == 0
    assert browser.problems == []


@pytest.mark.parametrize("edge", ["usual", "alone", "noisy"])
def test_the_tables_have_the_figures_of_the_marks(browser: Browser, show: Shown, edge: str) -> None:
    document = EDGES[edge]()
    show(document)
    charts = browser.value(
        "Array.from(document.querySelectorAll('figure'), figure => ({"
        "...figure.dataset,"
        "marks: Array.from(figure.querySelectorAll('.mark'), mark => ({...mark.dataset,"
        "x: parseFloat(mark.querySelector('.point').getAttribute('x')), "
        "shown: mark.closest('.row').querySelector('.value').textContent})),"
        "table: Array.from(figure.querySelectorAll('tbody tr'),"
        " row => Array.from(row.children, cell => cell.textContent))}))"
    )
    assert {chart["metric"] for chart in charts} == set(document["columns"])
    for chart in charts:
        told = {row[0]: row[1] for row in chart["table"]}
        cells = document["columns"][chart["metric"]]["servers"]
        with_figure = [name for name, each in cells.items() if each["rounds"]]
        assert len(chart["marks"]) == len(with_figure)
        for mark in chart["marks"]:
            assert told[mark["name"]] == mark["shown"].removesuffix(" !")
            assert float(told[mark["name"]].replace(",", "")) == pytest.approx(float(mark["figure"]), abs=0.5)
        # The marks stand in the order of their figures.
        places = sorted((float(mark["figure"]), mark["x"]) for mark in chart["marks"])
        assert [x for _, x in places] == sorted(x for _, x in places)
        assert all(2 <= x <= 98 for _, x in places)
        for mark in chart["marks"]:
            low, high = float(mark.get("low", mark["figure"])), float(mark.get("high", mark["figure"]))
            assert float(chart["low"]) <= low <= float(mark["figure"]) <= high <= float(chart["high"])


def test_failures_errors_and_absence_are_told_with_their_reasons(browser: Browser, show: Shown) -> None:
    show(usual())
    chart = "figure[data-metric=pong_c64]"
    assert texts(browser, f"{chart} .failed .name") == ["waitress"]
    assert texts(browser, f"{chart} .why") == ["✕ ended with status 1: no such module"]
    assert texts(browser, f"{chart} .faulty .value") == ["90 !"]
    assert texts(browser, f"{chart} .picture .remarks li") == [
        "! bjoern: 3 errors: 3 time-outs",
        "Did not take part (not installed): uwsgi http.",
    ]
    browser.value(f"document.querySelector('{chart} details').open = true")
    assert texts(browser, f"{chart} details li") == [
        "bjoern: 3 time-outs",
        "waitress: ended with status 1: no such module",
    ]
    # No ratio to a figure that has errors.
    assert texts(browser, f"{chart} .row:not(.heads) .ratio") == ["", "2.00 \N{MULTIPLICATION SIGN}", ""]


def test_a_noisy_run_is_not_ranked(browser: Browser, show: Shown) -> None:
    show(EDGES["noisy"]())
    assert "The rounds differ by 31 %." in texts(browser, ".noise")[0]
    text = browser.value("document.body.textContent").replace(texts(browser, ".noise")[0], "")
    assert not re.search(r"\N{MULTIPLICATION SIGN}|▼|\bbest\b|\bahead\b|\bbehind\b|\beven\b|Tailrace is", text)
    assert texts(browser, "figure[data-metric=words] .row[class*=row] .name")[1:4] == [
        "▶ tailrace",
        "granian",
        "bjoern",
    ]
