"""The page of a run, in Chromium: on every screen, on paper, and of runs that went wrong."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.browser import Browser, contrast
from harness.comparisons import EDGES, usual

from tailrace.compare import report

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


@pytest.mark.parametrize("edge", ["usual", "twenty servers", "alone", "noisy", "narrow charts"])
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


def test_a_factor_of_10_000_has_a_logarithmic_axis_that_says_so(browser: Browser, show: Shown) -> None:
    show(usual())
    assert texts(browser, "figure[data-metric=words] .said .strip") == ["ms, log scale; further left is better"]
    assert texts(browser, "figure[data-metric=pong_c64] .said .strip") == ["requests/s; further right is better"]


def test_what_people_run_comes_first_then_losses_before_wins(browser: Browser, show: Shown) -> None:
    show(usual())
    assert texts(browser, "h2")[:2] == [
        "Flask and Django in production: a worker per core",
        "All results at a glance, losses first",
    ]
    assert texts(browser, ".glance .value") == [
        "▼ 0.50 \N{MULTIPLICATION SIGN} granian",
        "even with granian",
        "2.00 \N{MULTIPLICATION SIGN} granian",
    ]
    assert "ahead in 1, even in 1, behind in 1" in texts(browser, ".summary")[0]
    for target in browser.value("Array.from(document.querySelectorAll('a[href^=\"#\"]'), a => a.hash.slice(1))"):
        assert browser.value(f"document.getElementById({json.dumps(target)}) !== null"), target


def test_our_row_is_marked_by_more_than_colour(browser: Browser, show: Shown) -> None:
    show(usual())
    row = "figure[data-metric=pong_c64] .row.ours"
    assert texts(browser, f"{row} .name") == ["▶ tailrace"]
    assert browser.value(f"document.querySelector('{row} .point path') !== null")
    assert browser.value(f"getComputedStyle(document.querySelector('{row} .name')).fontWeight") == "700"


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


def test_each_experiment_says_what_it_means_and_how_to_repeat_it(browser: Browser, show: Shown) -> None:
    show(usual())
    assert texts(browser, "#experiment-flask-cores .meaning") == ["What people get."]
    browser.value("document.querySelectorAll('details.again').forEach(each => each.open = true)")
    assert texts(browser, "#experiment-words .again code") == [
        "tailrace compare --only words",
        "wrk http://127.0.0.1:8000/",
    ]
    assert texts(browser, "#servers code")[0] == "run tailrace"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(browser: Browser, show: Shown, scheme: str) -> None:
    browser.emulate(width=1280, scheme=scheme)
    for edge in ("usual", "noisy"):
        show(EDGES[edge]())
        pairs = browser.value(
            """(() => {
            const shown = color => {
              const context = new OffscreenCanvas(1, 1).getContext('2d');
              context.fillStyle = color; context.fillRect(0, 0, 1, 1);
              return Array.from(context.getImageData(0, 0, 1, 1).data);
            };
            const back = each => {
              for (; each; each = each.parentElement) {
                const color = shown(getComputedStyle(each).backgroundColor);
                if (color[3] === 255) return color;
              }
              return shown('Canvas');
            };
            document.querySelectorAll('details').forEach(each => each.open = true);
            return Array.from(document.querySelectorAll('body *'))
              .filter(each => Array.from(each.childNodes).some(node => node.nodeType === 3 && node.data.trim()))
              .map(each => [each.outerHTML.slice(0, 80), shown(getComputedStyle(each).color), back(each)]);
            })()"""
        )
        assert len(pairs) > 50
        assert [what for what, text, back in pairs if contrast(tuple(text), tuple(back)) < 4.5] == []


@pytest.mark.parametrize(("width", "media"), [*((width, "screen") for width in WIDTHS), (680, "print")])
def test_no_label_of_an_axis_meets_its_neighbour(browser: Browser, show: Shown, width: int, media: str) -> None:
    browser.emulate(width=width)
    browser.call("Emulation.setEmulatedMedia", media=media)
    for edge in ("usual", "twenty servers", "narrow charts"):
        show(EDGES[edge]())
        meeting = browser.value(
            "Array.from(document.querySelectorAll('.axis')).flatMap(axis => {"
            "const boxes = Array.from(axis.querySelectorAll('.tick'))"
            ".filter(each => getComputedStyle(each).visibility === 'visible')"
            ".map(each => each.getBoundingClientRect());"
            "return boxes.slice(1).filter((box, at) => box.left < boxes[at].right + 2).map(box => box.left)})"
        )
        assert meeting == []


def test_paper_shows_charts_figures_and_commands_in_light_colours(browser: Browser, show: Shown) -> None:
    browser.emulate(width=1280, scheme="dark")
    show(usual())
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.value("getComputedStyle(document.body).color") == "rgb(27, 32, 38)"
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    seen = "document.querySelector('.again code').checkVisibility({contentVisibilityAuto: true})"
    assert browser.value(seen)
    assert browser.value("document.querySelector('.mark').getBoundingClientRect().width > 0")
    pdf = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
