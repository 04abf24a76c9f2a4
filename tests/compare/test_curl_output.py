"""What is read from what curl writes."""

from __future__ import annotations

from tailrace.compare import curl


def test_the_connect_is_not_in_the_time() -> None:
    assert curl.read("200 4 0.001000 0.003500", 0, "", 4) == curl.Fetch(2.5, 200, 4, "")


def test_a_short_response_is_a_failure() -> None:
    assert curl.read("200 3 0.001 0.002", 0, "", 4).failure == "3 bytes instead of 4"


def test_another_status_is_a_failure() -> None:
    assert curl.read("500 4 0.001 0.002", 0, "", 4).failure == "status 500"


def test_curl_s_own_complaint_comes_first() -> None:
    assert curl.read("200 3 0.001 0.002", 18, "curl: (18) cut\n", 4).failure == "curl: (18) cut"


def test_silence_is_a_failure() -> None:
    assert curl.read("", 7, "", 4).failure == "curl exited with 7"
