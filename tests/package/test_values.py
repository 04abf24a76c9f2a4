"""Reading and writing option values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli import values


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (65536, 65536),
        ("65536", 65536),
        ("64k", 65536),
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("64kB", 64000),
        ("1.5m", 1572864),
        ("10MiB", 10485760),
        ("10MB", 10000000),
        ("1g", 1 << 30),
        ("1GB", 10**9),
        ("2t", 2 << 40),
        ("+3", 3),
        ("0", 0),
    ],
)
def test_a_size_is_a_number_with_a_unit(written, number):
    assert values.size().read(written) == number


@pytest.mark.parametrize(
    "written",
    ["", "ten", "10 apples", "-1", "1e6", "0x10", "10mib/s", "1.5", "\u0663", "5\u212a", True, 1.5, None, [1]],
)
def test_what_is_no_size_is_refused(written):
    with pytest.raises(ValueError, match="must be"):
        values.size().read(written)


@given(st.integers(0, 1 << 50))
def test_a_size_that_is_shown_reads_back(number):
    assert values.size().read(values.size().write(number)) == number


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (30, 30.0),
        (0.5, 0.5),
        ("30", 30.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("2w", 1209600.0),
        ("1y", 31536000.0),
        ("1.5 s", 1.5),
    ],
)
def test_a_time_is_a_number_of_seconds_with_a_unit(written, seconds):
    assert values.seconds(zero=False).read(written) == seconds


@pytest.mark.parametrize(
    "written",
    ["", "soon", "-1", -1, 0, "0", "nan", float("nan"), float("inf"), 1e12, True, "5 days", "\u0663", "1_000"],
)
def test_what_is_no_time_is_refused(written):
    with pytest.raises(ValueError, match="must be"):
        values.seconds(zero=False).read(written)


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


def test_zero_is_a_time_only_where_it_means_something():
    assert values.seconds(zero=True).read("0") == 0.0


@pytest.mark.parametrize(
    ("written", "truth"), [(True, True), ("yes", True), ("ON", True), ("1", True), ("no", False), ("0", False)]
)
def test_truth_has_several_spellings(written, truth):
    assert values.boolean().read(written) is truth


@pytest.mark.parametrize("written", ["", "maybe", 1, 0, None])
def test_other_spellings_of_truth_are_refused(written):
    with pytest.raises(ValueError, match="true or false"):
        values.boolean().read(written)


@pytest.mark.parametrize(
    ("written", "bits"), [("027", 0o27), ("27", 0o27), ("0o660", 0o660), (0o600, 0o600), ("", None), (None, None)]
)
def test_permission_bits_are_octal(written, bits):
    assert values.octal().read(written) == bits


@pytest.mark.parametrize("written", ["8", "\u0663", "7" * 99, "0o1000", -1, 0o1000, "rwx", True])
def test_what_are_no_permission_bits_is_refused(written):
    with pytest.raises(ValueError, match="octal"):
        values.octal().read(written)


@given(st.integers(0, 0o777))
def test_permission_bits_that_are_shown_read_back(bits):
    assert values.octal().read(values.octal().write(bits)) == bits


def test_a_number_in_a_list_is_its_digits():
    kind = values.several(values.text("ADDRESS"))
    assert kind.read(9881) == kind.read([9881]) == ("9881",)


def test_a_list_is_an_array_or_separated_text():
    kind = values.several(values.text("ADDRESS"))
    assert kind.read("a:1, b:2\tc:3") == kind.read(["a:1", "b:2", "c:3"]) == ("a:1", "b:2", "c:3")


@pytest.mark.parametrize("written", ["", " , ", [], True, None, b"a:1"])
def test_an_empty_list_is_refused(written):
    with pytest.raises(ValueError, match=r"must (be a list|name at least one)"):
        values.several(values.text("ADDRESS")).read(written)


def test_whole_numbers_have_bounds():
    kind = values.whole(1, 10)
    assert kind.read("10") == 10
    for outside, message in (
        (0, "at least 1"),
        ("11", "at most 10"),
        (True, "whole"),
        (1.0, "whole"),
        ("1.5", "whole"),
        ("", "whole"),
        ("\u0663", "whole"),
    ):
        with pytest.raises(ValueError, match=message):
            kind.read(outside)


@pytest.mark.parametrize("text", ["a\nb", "a\r\nX: y", "\0", "\x7f"])
def test_text_has_no_control_characters(text):
    with pytest.raises(ValueError, match="control characters"):
        values.text("TEXT").read(text)
