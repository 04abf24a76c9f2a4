"""What is to be fixed where only figures of the server's records are known: each rule, by figures that it fits and by
such that it does not."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.findings import figures, response
from tailrace.findings.figures import Figures
from tailrace.findings.finding import MANY, PAUSE, SLOW, SLOWEST, SMALL, WHOLE, WORTH_A_WRAPPER, Finding

DOCS = (Path(__file__).resolve().parents[2] / "docs/doctor.md").read_text()
# Ten responses of one block each, in one write.
WELL = Figures(
    responses=10,
    application=20.0,
    delivery=0.2,
    blocked=0.0,
    blocks=10,
    writes=10,
    bytes=50_000,
    paths={"one-write": 10},
)
DIRECT = replace(WELL, paths={"one-write": 2, "direct": 8}, delivery=2.0)
SMALL_BLOCKS = replace(DIRECT, blocks=10 * MANY, bytes=10 * MANY * (SMALL - 1))
# What fits each rule, and what just does not.
CASES = {
    "exception": (replace(WELL, failed=1), [WELL, replace(WELL, gone=10)]),
    "memory-growth": (
        replace(WELL, grown=figures.GROWN, grown_error=figures.GROWN / figures.SURE, grown_responses=10),
        [
            replace(WELL, grown=figures.GROWN - 1, grown_responses=10),
            replace(WELL, grown=9 * figures.GROWN, grown_error=4.0 * figures.GROWN, grown_responses=10),
        ],
    ),
    "client-disconnected": (
        replace(WELL, gone=5, application=10 * PAUSE),
        [
            replace(WELL, gone=4, application=10 * PAUSE),
            replace(WELL, gone=10, application=9 * PAUSE),
            replace(WELL, responses=100, gone=9, application=100 * PAUSE),
            replace(WELL, gone=10, application=10 * PAUSE, event_streams=10),
        ],
    ),
    "waiting-for-client": (
        replace(WELL, blocked=10 * PAUSE),
        [replace(WELL, blocked=9 * PAUSE), replace(WELL, blocked=10 * PAUSE, application=10 * PAUSE, gone=5)],
    ),
    "starving": (
        replace(DIRECT, delivery=10 * PAUSE),
        [
            replace(WELL, delivery=10 * PAUSE),
            replace(DIRECT, delivery=9 * PAUSE),
            # It was the client that took the time.
            replace(DIRECT, delivery=20 * PAUSE, blocked=15 * PAUSE),
            # The time is that of the steps.
            replace(SMALL_BLOCKS, blocks=10**6, bytes=10**8, delivery=20 * PAUSE),
            replace(SMALL_BLOCKS, blocks=10**5, bytes=10**7, delivery=99 * PAUSE),
        ],
    ),
    "small-blocks": (
        SMALL_BLOCKS,
        [
            replace(SMALL_BLOCKS, paths={"one-write": 10}),
            replace(SMALL_BLOCKS, blocks=10 * MANY - 1),
            replace(SMALL_BLOCKS, bytes=10 * MANY * SMALL),
            # A stream of events: its blocks come now and then.
            replace(SMALL_BLOCKS, delivery=10 * MANY * 2.0),
        ],
    ),
    "file-through-python": (
        replace(DIRECT, bytes=10 * WORTH_A_WRAPPER, blocks=160),
        [
            replace(DIRECT, bytes=10 * WORTH_A_WRAPPER - 1, blocks=160),
            replace(DIRECT, bytes=10 * WHOLE, blocks=10_000),
            replace(WELL, bytes=10 * WHOLE),
        ],
    ),
    "no-length": (
        replace(DIRECT, chunked=6),
        [
            replace(DIRECT, chunked=5),
            replace(DIRECT, chunked=6, bytes=0),
            replace(DIRECT, chunked=6, bytes=11 * WHOLE),
            replace(DIRECT, chunked=6, delivery=10 * PAUSE),
            replace(WELL, chunked=6),
            # If the body is not a file, the advice is to return a list.
            replace(DIRECT, chunked=6, bytes=10 * WORTH_A_WRAPPER, blocks=160),
        ],
    ),
}
RECORD = {
    "status": 200,
    "event_stream": False,
    "ending": "complete",
    "path": "one-write",
    "body_bytes": 5,
    "blocks": 1,
    "writes": 1,
    "queued": 0.0,
    "application": 0.001,
    "iterating": 0.0,
    "blocked": 0.0,
    "cpu": 0.0,
}


def keys(found):
    return [one.key for one in found]


@pytest.mark.parametrize("key", CASES)
def test_figures_that_fit_a_rule_have_its_finding_and_others_do_not(key):
    fits, others = CASES[key]
    assert key in keys(figures.findings(fits, "shop:app"))
    for other in others:
        assert key not in keys(figures.findings(other, "shop:app")), other


def test_every_rule_has_figures_that_fit_it():
    assert tuple(CASES) == figures.KEYS


def test_a_finding_has_the_milliseconds_and_system_calls_beyond_the_floor():
    found = {one.key: one for one in figures.findings(replace(SMALL_BLOCKS, writes=50, delivery=20.0), "shop:app")}
    one = found["small-blocks"]
    floor = figures.FLOOR_MS + figures.FLOOR_MS_EACH_MIB * MANY * (SMALL - 1) / WHOLE
    assert (one.ms, one.calls) == (pytest.approx(2.0 - floor), 4.0)
    assert "occupied for 2.00 ms, and 5 system calls" in one.cost
    assert Finding.of_dict(one.as_dict()) == replace(one, ms=round(one.ms, 3))


def test_the_delivery_of_what_left_as_a_whole_costs_nothing_however_long_its_thread_waited_for_the_interpreter():
    assert replace(WELL, application=1000.0, delivery=1000.0).cost == 0.0
    assert replace(DIRECT, application=1000.0, delivery=1000.0).cost > 900.0
    # One system call for each 256 KiB.
    assert replace(DIRECT, bytes=10 << 20, writes=50).more_calls == 0.0
    assert replace(DIRECT, writes=50).more_calls == 40.0
    # A socket may take it in several writes.
    assert replace(WELL, writes=50).more_calls == 0.0


def test_what_the_application_takes_until_the_first_block_is_a_cost_and_a_stream_of_events_is_none():
    assert replace(WELL, application=17_000.0, delivery=0.0).cost == 17_000.0
    events = replace(
        DIRECT, application=17_000.0, delivery=0.0, event_streams=10, streaming=17_000.0, chunked=10, bytes=10
    )
    assert (events.cost, figures.findings(events, "shop:app")) == (0.0, [])
    # Some of the responses only.
    assert replace(events, event_streams=4, streaming=7_000.0).cost == 10_000.0


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, []),
        ({"application": 2.0}, ["before-first-block"]),
        ({"queued": 2.0}, ["queue"]),
        ({"application": 2.0, "status": 500}, ["exception", "before-first-block"]),
        ({"ending": "broken"}, ["exception"]),
        ({"ending": "timed-out", "status": 504, "application": 3.0}, ["deadline", "before-first-block"]),
        ({"ending": "cut"}, ["cut"]),
        ({"ending": "client-disconnected", "iterating": 2.0, "path": "direct", "blocks": 10}, ["client-disconnected"]),
        ({"iterating": 2.0, "path": "direct", "blocks": 10, "application": 0.2}, ["starving"]),
        ({"iterating": 2.0, "blocked": 1.99, "path": "spilled"}, ["waiting-for-client"]),
        # What the holder sends costs no thread, however many blocks it had.
        ({"iterating": 0.02, "blocks": 1000, "body_bytes": 5000, "writes": 0, "path": "held"}, []),
        ({"iterating": 2.0, "path": "coalesced", "blocks": 10**5, "body_bytes": 10**6}, ["small-blocks"]),
    ],
)
def test_a_response_has_what_its_record_says(record, expected):
    assert keys(response.findings(RECORD | record, "shop:app")) == expected


def test_a_file_may_be_no_file_and_a_client_that_leaves_is_no_reason_for_greenlets():
    (file,) = figures.findings(replace(DIRECT, chunked=10, bytes=10 * WORTH_A_WRAPPER, blocks=160), "shop:app")
    assert "If it is a file: pass the file" in file.change and "Otherwise: return a list" in file.change
    left = figures.findings(replace(DIRECT, gone=5, application=9e4, delivery=9e3, blocked=8e3), "shop:app")
    assert [(one.key, one.code) for one in left] == [
        ("client-disconnected", "tailrace shop:app --cancel-on-disconnect safe")
    ]


@pytest.mark.parametrize(
    ("cpu", "said"),
    [
        (2.0, "It waited for 283 ms of 285 ms: for a database, a lock or another service. Meanwhile"),
        (35.0, "It waited for 250 ms of 285 ms, and computed for 35.0 ms."),
        (
            280.0,
            "It computed for 280 ms of 285 ms: in its own code, or in many small calls, such as a query for each row",
        ),
    ],
)
def test_a_slow_endpoint_says_where_its_time_went(cpu, said):
    slow = replace(WELL, application=2850.0, delivery=0.0, cpu=10 * cpu)
    (hint,) = figures.hints(slow, "shop:app", is_slowest=False)
    assert said in hint.cost
    assert "tailrace threads --status ADDRESS" in hint.code


def test_an_endpoint_is_slow_from_100_ms_on_but_the_slowest_of_all_sooner():
    quick = replace(WELL, application=10 * SLOWEST, delivery=0.0)
    assert [figures.hints(quick, "shop:app", is_slowest=slowest) == [] for slowest in (True, False)] == [False, True]
    assert figures.hints(replace(quick, application=10 * SLOW), "shop:app", is_slowest=False)
    assert figures.hints(replace(quick, application=9.9 * SLOWEST), "shop:app", is_slowest=True) == []
    events = replace(quick, application=10 * SLOW, streaming=10 * SLOW, event_streams=10)
    assert figures.hints(events, "shop:app", is_slowest=True) == []


def test_the_docs_have_each_key_of_a_running_server():
    table = re.search(r"<!-- live -->\n(.*?)\n\n", DOCS, re.DOTALL)
    assert table
    described = re.findall(r"^\| `([\w-]+)` \|", table[1], re.MULTILINE)
    of_records = ["deadline", "cut", "queue", "before-first-block"]
    assert described == [*figures.KEYS, *of_records]
