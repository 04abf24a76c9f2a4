"""What is read from what curl writes."""

import pytest
from tailrace_compare import curl


def test_the_connect_is_not_in_the_time() -> None:
    assert curl.read("200 4 0.001000 0.003500", 0, "", 4) == curl.Fetch(2.5, 200, 4, "")


@pytest.mark.parametrize(
    ("written", "status", "complaint", "failure"),
    [
        ("200 3 0.001 0.002", 0, "", "3 bytes instead of 4"),
        ("500 4 0.001 0.002", 0, "", "status 500"),
        ("200 3 0.001 0.002", 18, "curl: (18) cut\n", "curl: (18) cut"),
        ("", 7, "", "curl exited with 7"),
    ],
)
def test_a_failure_is_named(written: str, status: int, complaint: str, failure: str) -> None:
    assert curl.read(written, status, complaint, 4).failure == failure
