"""When a ranking is refused."""

import os

import pytest
from tailrace_compare import noise
from tailrace_compare.noise import MAX_SPREAD, MAX_STEAL, MAX_WAITING, Look

QUIET = Look("pong_c64", 0.02, 0.0, 0.0)


def test_a_quiet_machine_ranks() -> None:
    assert not noise.judge([QUIET] * 5).refused
    assert not noise.judge([Look("at the limits", MAX_SPREAD, MAX_STEAL, MAX_WAITING)]).refused


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (Look("a", 0.4, 0.0, 0.0), "a fixed piece of work varied by 40 % (limit 15 %)"),
        (Look("a", 0.0, 0.05, 0.0), "other virtual machines took 5 % (limit 3 %)"),
        (Look("a", 0.0, 0.0, 1.3), "1.3 other processes were runnable (limit 0.5)"),
    ],
)
def test_each_measure_alone_refuses_and_is_named(look: Look, said: str) -> None:
    verdict = noise.judge([look])
    assert verdict.refused
    assert verdict.reason == f"The machine was too noisy: in a quarter of the checks, {said}."


def test_one_noisy_look_among_many_is_forgiven_and_a_quarter_is_not() -> None:
    noisy = Look("a", 0.9, 0.0, 0.0)
    assert not noise.judge([*[QUIET] * 9, noisy]).refused
    assert noise.judge([*[QUIET] * 2, noisy, noisy]).refused


def test_the_spread_is_a_part_of_the_median() -> None:
    assert noise.spread([2.0] * 10) == 0
    assert noise.spread([1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]) == pytest.approx(1.0)


def test_a_look_leaves_the_process_on_its_cores() -> None:
    before = os.sched_getaffinity(0)
    look = noise.look("startup")
    assert os.sched_getaffinity(0) == before
    assert look.before == "startup"
    assert look.spread > 0


def test_of_a_part_of_the_cores_only_their_steal_counts() -> None:
    stat = (
        "cpu  1 2 3 4 5 6 7 900 0 0\ncpu0 1 2 3 4 5 6 7 100 0 0\ncpu1 1 2 3 4 5 6 7 300 0 0\n"
        "cpu10 1 2 3 4 5 6 7 500 0 0\nintr 8\n"
    )
    assert noise.stolen_ticks(stat, [0, 10]) == 600
    assert noise.stolen_ticks(stat, [0, 2]) == 100


def test_looks_are_the_same_after_the_json_file() -> None:
    looks = [QUIET, Look("b", 0.4, 0.0, 2.0)]
    document = noise.as_json(looks)
    assert document["refused"] is True
    assert noise.from_json(document) == looks
