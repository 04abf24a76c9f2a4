"""What is read from wrk's report."""

from dataclasses import replace

from tailrace_compare import wrk
from tailrace_compare.work import Load, Work

REPORT = """Running 1s test @ http://127.0.0.1:8000/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    71.40ms   35.90ms 157.75ms   68.40%
    Req/Sec   767.89    301.36     1.30k    66.67%
  750 requests in 1.25s, 88.62KB read
"""


def test_the_rate_is_requests_over_the_time_they_took() -> None:
    assert wrk.read(REPORT) == Load(600.0, 0, "", answers=750, seconds=1.25, mean=71.4)


def test_answers_that_are_not_2xx_are_errors_and_not_in_the_rate() -> None:
    load = wrk.read(REPORT + "  Non-2xx or 3xx responses: 250\n")
    assert (load.rate, load.errors, load.detail) == (400.0, 250, "250 status")


def test_every_kind_of_socket_error_counts() -> None:
    load = wrk.read(REPORT + "  Socket errors: connect 1, read 617, write 0, timeout 3\n")
    assert (load.errors, load.detail) == (621, "1 connect, 617 read, 3 timeout")


def test_no_report_is_an_error() -> None:
    assert wrk.read("unable to connect").errors == 1


def test_latencies_are_milliseconds() -> None:
    load = wrk.read(REPORT + "  Latency Distribution\n     50%  702.00us\n     75%    1.01ms\n     99%    1.20s\n")
    assert (load.p50, load.p99) == (0.702, 1200.0)


def test_latencies_of_few_connections_are_told_from_those_of_all() -> None:
    work = Work("http://127.0.0.1:8000/", 64, 1.0, 0)
    # 600 answers a second of 71.4 ms each: 43 connections.
    load = wrk.read(REPORT)
    assert load.unserved(work) == ""
    few = replace(load, mean=7.0)
    assert few.unserved(work) == "no latencies: about 4 of 64 connections were served, while the others waited"
    assert few.unserved(replace(work, connections=8)) == ""
    assert few.unserved(replace(work, close=True)) == ""
