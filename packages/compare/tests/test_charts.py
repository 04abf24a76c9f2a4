"""Axes, and the README's chart."""

from xml.etree import ElementTree

import pytest
from comparisons import EDGES, MARKUP, cell, document, metric, scenario, usual
from tailrace_compare import report
from tailrace_compare.report.scale import Scale

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("figures", "log"),
    [([1, 99], False), ([1, 100], True), ([0, 5, 90], False), ([0, 1, 1000], True), ([], False), ([0], False)],
)
def test_an_axis_is_logarithmic_from_a_factor_of_100_on(figures: list[float], log: bool) -> None:
    assert Scale.of(figures).log is log


def shapes() -> ElementTree.Element:
    return ElementTree.fromstring(report.readme_chart(usual()))


def test_the_chart_has_a_mark_for_each_server_on_one_axis() -> None:
    titles = [each.text or "" for each in shapes().iter(f"{SVG}title")][1:]
    assert titles[:3] == ["granian: 10 ms", "bjoern: 11.1 ms", "Tailrace: 4.99 ms"]
    assert titles[3:] == ["granian: 5 ms", "bjoern: 5e+04 ms", "Tailrace: 10 ms"]
    circles = list(shapes().iter(f"{SVG}circle"))
    hollow = [each for each in circles if each.find(f"{SVG}title") is not None and "faulty" in each.attrib["class"]]
    assert [each.find(f"{SVG}title").text for each in hollow] == ["bjoern: 11.1 ms"]  # type: ignore[union-attr]


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
