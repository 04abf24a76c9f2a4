"""The rate of clients that ask again and again."""

from __future__ import annotations

import pytest

from tailrace.compare.sleepers import Counted


def test_an_answer_across_the_edge_counts_for_its_part() -> None:
    counted = Counted([(number / 10 + 0.05, number / 10 + 0.15) for number in range(40)])
    assert counted.rate(1.0, 3.0) == pytest.approx(10.0)


def test_answers_as_long_as_the_window_count_where_they_end() -> None:
    assert Counted([(0.0, 1.0), (0.0, 2.0), (0.0, 3.5)]).rate(0.5, 2.5) == 1.0


def test_no_answers_are_no_rate() -> None:
    assert Counted().rate(0.0, 1.0) == 0.0
