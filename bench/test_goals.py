"""Figures, ratios and verdicts."""

from __future__ import annotations

from bench.goals import AtMost, FloorTimes, NoErrors, Times, TimesBest, advantage
from bench.results import Cell, Column, Metric, Sample

RATE = Metric("pong", "Pong", "pong", "requests/s", True)
TIME = Metric("words", "Words", "words", "ms", False)


def column(metric: Metric, **servers: list[float | None]) -> Column:
    made = Column(metric)
    for name, figures in servers.items():
        cell = made.cells[name] = Cell()
        for number, figure in enumerate(figures):
            cell.add(number, figure, Sample(errors=figure is None))
    return made


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The machine is three times as slow in the second round, for both.
    assert advantage(column(RATE, penstock=[300, 100, 330], granian=[100, 50, 110]), "granian") == 3.0


def test_less_time_is_an_advantage() -> None:
    assert advantage(column(TIME, penstock=[2.0], granian=[60.0]), "granian") == 30.0


def test_a_round_that_one_of_them_lost_is_not_compared() -> None:
    assert advantage(column(RATE, penstock=[300, 400], granian=[100, None]), "granian") == 3.0


def test_times_is_met_at_its_factor() -> None:
    figures = column(RATE, penstock=[120], granian=[100])
    assert Times(1.2, "granian").judge(figures).met is True
    assert Times(1.21, "granian").judge(figures).met is False


def test_the_best_peer_is_no_floor_and_made_no_error() -> None:
    figures = column(RATE, penstock=[100], nginx=[900], bjoern=[80], fastwsgi=[200, None])
    assert figures.best_peer() == "bjoern"
    assert TimesBest(1.0).judge(figures).met is True


def test_the_floor_is_a_bound_from_above() -> None:
    figures = column(TIME, penstock=[2.9], iteration=[1.5])
    assert FloorTimes(2.0).judge(figures).met is True
    assert FloorTimes(1.9).judge(figures).met is False


def test_no_figure_after_a_round_is_a_goal_missed() -> None:
    assert AtMost(1).judge(column(TIME, penstock=[None])).met is False
    assert Times(1.2, "granian").judge(column(RATE, penstock=[None], granian=[1])).met is False


def test_a_run_without_penstock_tells_nothing() -> None:
    assert AtMost(1).judge(column(TIME, granian=[5.0])).met is None


def test_errors_are_not_forgotten_beside_a_figure() -> None:
    assert NoErrors().judge(column(RATE, penstock=[5.0, 6.0])).met is True
    assert NoErrors().judge(column(RATE, penstock=[5.0, None])).met is False


def test_the_json_form_gives_the_same_column() -> None:
    figures = column(TIME, penstock=[2.0, None, 3.0], granian=[60.0])
    assert Column.from_json(TIME, figures.as_json()) == figures
