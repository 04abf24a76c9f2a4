"""The table of what a front costs."""

from bench import fronts
from bench.fronts import Turn


def test_the_hop_is_what_a_request_takes_more():
    turns = {
        "no front": [Turn(10_000, 100e-6), Turn(20_000, 50e-6), Turn(12_500, 80e-6)],
        "a front": [Turn(5_000, 190e-6), Turn(10_000, 100e-6), Turn(6_250, 160e-6)],
    }
    assert fronts.table(turns).splitlines()[2:] == [
        "| no front | 12,500 | 1.00 | 80 | 0 |",
        "| a front | 6,250 | 0.50 | 160 | 80 |",
    ]
