"""The table of what a transport costs."""

from bench import packets


def test_a_ratio_is_that_within_a_round():
    times = {packets.FIRST: [0.010, 0.020, 0.030], "uWSGI": [0.040, 0.020, 0.090]}
    assert packets.table(times).splitlines()[2:] == [
        f"| {packets.FIRST} | 20.0 | 1.00 |",
        "| uWSGI | 40.0 | 3.00 |",
    ]
