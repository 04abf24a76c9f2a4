"""Axes, and the README's chart."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from harness.browser import Browser
from harness.comparisons import EDGES, MARKUP, cell, document, metric, scenario, usual

from tailrace.compare import report
from tailrace.compare.report.scale import Scale, tick_label

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("figures", "log"),
    [([1, 99], False), ([1, 100], True), ([0, 5, 90], False), ([0, 1, 1000], True), ([], False), ([0], False)],
)
def test_an_axis_is_logarithmic_from_a_factor_of_100_on(figures: list[float], log: bool) -> None:
    assert Scale.of(figures).log is log


@pytest.mark.parametrize("figures", [[0.001, 0.002], [1, 9], [3, 250], [5, 50_000], [-3, 9], [1e-3, 1e9], [7], [0]])
def test_an_axis_has_a_handful_of_round_ticks_in_order(figures: list[float]) -> None:
    scale = Scale.of(figures)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 6
    places = [scale.place(tick) for tick in ticks]
    assert places == sorted(places)
    assert all(re.fullmatch(r"-?\d+(\.\d+)?(e-\d+)?[kMG]?", tick_label(tick)) for tick in ticks)


@pytest.mark.parametrize("figures", [[0.95, 1.04], [0.8, 1.3], [1, 1], [0.4, 60], [700, 1400]])
def test_a_logarithmic_axis_of_any_length_has_ticks(figures: list[float]) -> None:
    scale = Scale.of(figures, log=True)
    assert len(scale.ticks()) >= 2
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks())


def test_a_linear_axis_begins_at_zero_so_that_lengths_are_ratios() -> None:
    scale = Scale.of([50, 100])
    assert scale.place(0) == 0
    assert scale.place(100) == pytest.approx(2 * scale.place(50))


def test_what_has_no_logarithm_stands_at_the_edge() -> None:
    scale = Scale.of([0, 1, 10_000])
    assert scale.place(0) == scale.place(-5) == 0 < scale.place(1)


def shapes() -> ElementTree.Element:
    return ElementTree.fromstring(report.readme_chart(usual()))


def test_the_chart_has_a_mark_for_each_server_on_one_axis() -> None:
    titles = [each.text or "" for each in shapes().iter(f"{SVG}title")][1:]
    assert titles[:3] == ["granian: 10 ms", "bjoern: 11.1 ms", "Tailrace: 4.99 ms"]
    assert titles[3:] == ["granian: 5 ms", "bjoern: 5e+04 ms", "Tailrace: 10 ms"]
    circles = list(shapes().iter(f"{SVG}circle"))
    hollow = [each for each in circles if each.find(f"{SVG}title") is not None and "faulty" in each.attrib["class"]]
    assert [each.find(f"{SVG}title").text for each in hollow] == ["bjoern: 11.1 ms"]  # type: ignore[union-attr]


def test_the_chart_says_what_was_found_where_and_when() -> None:
    said = " / ".join(each.text or "" for each in shapes().iter(f"{SVG}text"))
    assert "Tailrace ahead in 1, behind in 1 of 2" in said
    assert "2.00 \N{MULTIPLICATION SIGN} granian" in said
    assert "no complete response: waitress" in said
    assert "log scale; left is better" in said
    assert "A processor, CPython 3.11.7" in said
    assert "2026-11-23" in said


def test_names_are_no_markup_in_the_chart() -> None:
    cells = {"tailrace": cell(10), MARKUP: cell(5), f"{MARKUP}2": cell(rounds=1)}
    made = document((scenario("pong_c64", metric("pong_c64")), {"pong_c64": cells}))
    made["machine"] = {"processor": MARKUP}
    kinds = {each.tag for each in ElementTree.fromstring(report.readme_chart(made)).iter()}
    assert not {f"{SVG}script", f"{SVG}img"} & kinds


@pytest.mark.parametrize("edge", ["empty", "all failed", "noisy"])
def test_there_is_no_chart_of_a_run_that_has_nothing_to_compare(edge: str) -> None:
    with pytest.raises(ValueError, match="chart"):
        report.readme_chart(EDGES[edge]())


def long_names() -> dict[str, Any]:
    """A run whose best server and whose failed ones have long names."""
    best, *silent = (f"{name} with a long name at Tailrace's defaults" for name in ("mod_wsgi embedded", "one", "two"))
    cells = {"tailrace": cell(10), best: cell(5), **{name: cell(rounds=1) for name in silent}}
    key = "wrapper_c4"
    return document((scenario(key, metric(key)), {key: cells}))


@pytest.mark.parametrize("made", [usual, long_names])
def test_no_text_of_the_chart_leaves_it_or_meets_another(
    browser: Browser, tmp_path: Path, made: Callable[[], dict[str, Any]]
) -> None:
    report.draw(made(), tmp_path / "shapes.svg")
    (tmp_path / "page.html").write_text((tmp_path / "shapes.svg").read_text())
    browser.open((tmp_path / "page.html").as_uri())
    boxes = browser.value(
        "Array.from(document.querySelectorAll('svg > text'), text => {"
        "const box = text.getBBox(); return [text.textContent, box.x, box.y, box.x + box.width, box.y + box.height]})"
    )
    assert boxes
    assert [box[0] for box in boxes if box[1] < 8 or box[3] > 472] == []
    meeting = [
        (one[0], two[0])
        for at, one in enumerate(boxes)
        for two in boxes[at + 1 :]
        if one[1] < two[3] and two[1] < one[3] and one[2] + 3 < two[4] and two[2] + 3 < one[4]
    ]
    assert meeting == []
