"""Figures, ratios and verdicts."""

import pytest
from tailrace_compare.goals import (
    AtLeast,
    AtMost,
    FloorTimes,
    NoErrors,
    Times,
    TimesBest,
    Within,
    WithinBest,
    advantage,
)
from tailrace_compare.peers import TAILRACE, TAILRACE_GEVENT, VIEW
from tailrace_compare.report.findings import is_even
from tailrace_compare.results import Cell, Column, Goal, Metric, Sample, Spread, Verdict, percentile

RATE = Metric("pong", "Pong", "pong", "requests/s", True)
TIME = Metric("words", "Words", "words", "ms", False)


def column(metric: Metric, /, **servers: list[float | None]) -> Column:
    """The names with _ for a space."""
    made = Column(metric)
    for name, figures in ((name.replace("_", " "), figures) for name, figures in servers.items()):
        cell = made.cells[name] = Cell()
        for number, figure in enumerate(figures):
            cell.add(number, figure, Sample(errors=figure is None))
    return made


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The machine is three times as slow in the second round, for both.
    assert advantage(column(RATE, tailrace=[300, 100, 330], granian=[100, 50, 110]), "granian") == 3.0


def test_less_time_is_an_advantage() -> None:
    assert advantage(column(TIME, tailrace=[2.0], granian=[60.0]), "granian") == 30.0


def test_a_round_that_one_of_them_lost_is_not_compared() -> None:
    assert advantage(column(RATE, tailrace=[300, 400], granian=[100, None]), "granian") == 3.0


def test_a_round_with_zero_is_not_left_out_of_a_ratio() -> None:
    # 0 missed in two of three rounds is no loss.
    assert advantage(column(TIME, tailrace=[0, 0, 3], granian=[5, 5, 2]), "granian") is None
    assert advantage(column(RATE, tailrace=[0, 100], granian=[50, 50]), "granian") is None


BEHIND = {"tailrace": [2.0], "tailrace gevent": [2.9]}
AHEAD = {"tailrace": [290], "tailrace gevent": [200]}


@pytest.mark.parametrize(
    ("goal", "metric", "figures", "met"),
    [
        (Times(1.2, "granian"), RATE, {"tailrace": [120], "granian": [100]}, True),
        (Times(1.21, "granian"), RATE, {"tailrace": [120], "granian": [100]}, False),
        # Bounds from above.
        (FloorTimes(2.0), TIME, {"tailrace": [2.9], "iteration": [1.5]}, True),
        (FloorTimes(1.9), TIME, {"tailrace": [2.9], "iteration": [1.5]}, False),
        (Within(1.5, TAILRACE, of=TAILRACE_GEVENT), TIME, BEHIND, True),
        (Within(1.4, TAILRACE, of=TAILRACE_GEVENT), TIME, BEHIND, False),
        (Within(1.5, TAILRACE, of=TAILRACE_GEVENT), RATE, AHEAD, True),
        (Within(1.4, TAILRACE, of=TAILRACE_GEVENT), RATE, AHEAD, False),
        # No figure after a round is a goal missed; a run without Tailrace tells nothing.
        (AtMost(1), TIME, {"tailrace": [None]}, False),
        (Times(1.2, "granian"), RATE, {"tailrace": [None], "granian": [1]}, False),
        (AtMost(1), TIME, {"granian": [5.0]}, None),
        # Errors are not forgotten beside a figure.
        (NoErrors(), RATE, {"tailrace": [5.0, 6.0]}, True),
        (NoErrors(), RATE, {"tailrace": [5.0, None]}, False),
    ],
)
def test_a_goal_is_met_or_missed(
    goal: Goal, metric: Metric, figures: dict[str, list[float | None]], met: bool | None
) -> None:
    assert goal.judge(column(metric, **figures)).met is met


def test_the_best_peer_is_no_floor_and_made_no_error() -> None:
    figures = column(RATE, tailrace=[100], nginx=[900], bjoern=[80], fastwsgi=[200, None])
    assert figures.best_peer() == "bjoern"
    assert TimesBest(1.0).judge(figures).met is True


def test_no_worse_than_the_best_peer_allows_a_factor() -> None:
    figures = column(TIME, tailrace=[108], granian=[150], bjoern=[100], tailrace_gevent=[50])
    assert WithinBest(1.1).judge(figures) == Verdict(
        "within 1.1 x of the best other server", "1.08 x bjoern (1.08 - 1.08)", True
    )
    assert WithinBest(1.05).judge(figures).met is False


def test_our_other_row_is_no_peer() -> None:
    figures = column(RATE, tailrace=[100], tailrace_gevent=[200], granian=[90])
    assert figures.best_peer() == "granian"
    assert TimesBest(1.0).judge(figures).met is True
    figures.cells[VIEW] = Cell(rounds=1, values={0: 300.0})
    assert figures.best_peer() == "granian"


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (AtLeast(150, of=TAILRACE_GEVENT), True),
        (AtMost(150, of=TAILRACE_GEVENT), False),
        (NoErrors(of=TAILRACE_GEVENT), True),
        (Times(2.0, "granian", of=TAILRACE_GEVENT), True),
        (TimesBest(2.3, of=TAILRACE_GEVENT), False),
        (WithinBest(1.0, of=TAILRACE_GEVENT), True),
    ],
)
def test_a_goal_is_one_of_the_row_that_it_names(goal: Goal, met: bool) -> None:
    verdict = goal.judge(column(RATE, tailrace=[1.0, None], tailrace_gevent=[200], granian=[90]))
    assert verdict.goal.startswith("tailrace gevent: ")
    assert verdict.met is met


def test_the_others_are_compared_with_threads_where_they_take_part() -> None:
    assert column(RATE, tailrace_gevent=[2], tailrace=[1], granian=[1]).ours() == TAILRACE
    assert column(RATE, tailrace_gevent=[2], granian=[1]).ours() == TAILRACE_GEVENT
    assert column(RATE, granian=[1]).ours() == TAILRACE


def test_99_of_100_values_do_not_exceed_the_99th() -> None:
    assert percentile(range(100, 0, -1), 0.99) == 99
    assert percentile([7], 0.99) == 7


def test_the_json_form_gives_the_same_column() -> None:
    figures = column(TIME, tailrace=[2.0, None, 3.0], granian=[60.0])
    assert Column.from_json(TIME, figures.as_json()) == figures


def test_a_ratio_whose_quartiles_lie_on_both_sides_of_one_is_even() -> None:
    assert not is_even(Spread.of([1.02, 1.10, 1.08, 1.12, 1.01]))
    assert is_even(Spread.of([0.90, 0.95, 1.02, 1.08, 1.10]))
    # Too few for quartiles: the extremes count.
    assert is_even(Spread.of([0.99, 1.2, 1.3]))
    # As they are shown.
    assert is_even(Spread.of([1.004]))
    assert Spread.of([1.1]) == Spread(1.1, 1.1, 1.1)
