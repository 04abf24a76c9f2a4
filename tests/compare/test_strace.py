"""What is read from strace's summary."""

from __future__ import annotations

from tailrace.compare import strace

SUMMARY = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.006000           3      2001           epoll_wait
 40.00    0.004000           2      2003         3 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.010000           2      4004         3 total
"""


def test_calls_are_counted_with_and_without_errors() -> None:
    assert strace.read(SUMMARY) == {"recvfrom": 2003, "epoll_wait": 2001}


def test_the_total_is_not_a_call() -> None:
    assert "total" not in strace.read(SUMMARY)
