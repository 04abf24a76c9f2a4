"""Reading and writing option values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli import values

ADDRESSES = values.several(values.text("ADDRESS"))
# Each value, and how it may be written.
READ = [
    (values.size(), 65536, [65536, "65536", "64k", "64KiB", "64 kib"]),
    (values.size(), 64000, ["64kB"]),
    (values.size(), 1572864, ["1.5m"]),
    (values.size(), 10485760, ["10MiB"]),
    (values.size(), 10000000, ["10MB"]),
    (values.size(), 1 << 30, ["1g"]),
    (values.size(), 10**9, ["1GB"]),
    (values.size(), 2 << 40, ["2t"]),
    (values.size(), 3, ["+3"]),
    (values.size(), 0, ["0"]),
    (values.seconds(zero=False), 30.0, [30, "30"]),
    (values.seconds(zero=False), 0.5, [0.5, "500ms"]),
    (values.seconds(zero=False), 1.5, ["1.5 s"]),
    (values.seconds(zero=False), 120.0, ["2m"]),
    (values.seconds(zero=False), 3600.0, ["1h"]),
    (values.seconds(zero=False), 86400.0, ["1d"]),
    (values.seconds(zero=False), 1209600.0, ["2w"]),
    (values.seconds(zero=False), 31536000.0, ["1y"]),
    (values.seconds(zero=True), 0.0, ["0"]),
    (values.boolean(), True, [True, "yes", "ON", "1"]),
    (values.boolean(), False, ["no", "0"]),
    (values.octal(), 0o27, ["027", "27"]),
    (values.octal(), 0o660, ["0o660", 0o660]),
    (values.octal(), None, ["", None]),
    (values.whole(1, 10), 10, ["10"]),
    (ADDRESSES, ("a:1", "b:2", "c:3"), ["a:1, b:2\tc:3", ["a:1", "b:2", "c:3"]]),
    # A number is its digits.
    (ADDRESSES, ("9881",), [9881, [9881]]),
]


@pytest.mark.parametrize(
    ("kind", "value", "written"), [(kind, value, one) for kind, value, spellings in READ for one in spellings]
)
def test_a_value_may_be_written_in_several_ways(kind, value, written):
    assert kind.read(written) == value
    assert type(kind.read(written)) is type(value)


REFUSED = [
    (values.size(), "must be", ["", "ten", "10 apples", "-1", "1e6", "0x10", "10mib/s", "1.5", "\u0663", "5\u212a"]),
    (values.size(), "must be", [True, 1.5, None, [1]]),
    (values.seconds(zero=False), "must be", ["", "soon", "-1", -1, 0, "0", "nan", "5 days", "\u0663", "1_000"]),
    (values.seconds(zero=False), "must be", [float("nan"), float("inf"), 1e12, True]),
    (values.boolean(), "true or false", ["", "maybe", 1, 0, None]),
    (values.octal(), "octal", ["8", "\u0663", "7" * 99, "0o1000", -1, 0o1000, "rwx", True]),
    (values.whole(1, 10), "at least 1", [0]),
    (values.whole(1, 10), "at most 10", ["11"]),
    (values.whole(1, 10), "whole", [True, 1.0, "1.5", "", "\u0663"]),
    (ADDRESSES, "must (be a list|name at least one)", ["", " , ", [], True, None, b"a:1"]),
    (values.text("TEXT"), "control characters", ["a\nb", "a\r\nX: y", "\0", "\x7f"]),
]


@pytest.mark.parametrize(
    ("kind", "said", "written"), [(kind, said, one) for kind, said, wrong in REFUSED for one in wrong]
)
def test_what_is_no_value_is_refused(kind, said, written):
    with pytest.raises(ValueError, match=said):
        kind.read(written)


@given(st.integers(0, 1 << 50))
def test_a_size_that_is_shown_reads_back(number):
    assert values.size().read(values.size().write(number)) == number


@given(st.integers(0, 0o777))
def test_permission_bits_that_are_shown_read_back(bits):
    assert values.octal().read(values.octal().write(bits)) == bits


@pytest.mark.parametrize("written", ["9" * 99, "9" * 5000, 10**99])
@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        (values.size(), "at most 1024TiB"),
        (values.seconds(zero=True), "at most 3000000000 seconds"),
        (values.whole(1, 10), "at most 10"),
        (values.whole(), "at most 1000000000000"),
        (values.or_auto(values.whole(1, 9)), "at most 9, or auto"),
    ],
)
def test_a_value_above_the_maximum_is_refused_with_the_maximum(kind, bound, written):
    with pytest.raises(ValueError, match=f"^must be {bound}$"):
        kind.read(written)


@pytest.mark.parametrize(
    ("kind", "written", "bound"),
    [
        (values.size(4096), "1k", "at least 4KiB"),
        (values.size(), "-1", "at least 0"),
        (values.seconds(zero=False), "-1", "more than 0 seconds"),
        (values.seconds(zero=True), "-1", "0 or more seconds"),
        # The core would make no time of it, which may mean "never".
        (values.seconds(zero=True), "0.0000000001", "0 or at least 0.001 seconds"),
        (values.seconds(zero=False), 1e-10, "at least 0.001 seconds"),
    ],
)
def test_a_value_below_the_minimum_is_refused_with_the_minimum(kind, written, bound):
    with pytest.raises(ValueError, match=f"^must be {bound}$"):
        kind.read(written)
