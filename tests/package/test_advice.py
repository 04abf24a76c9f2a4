"""What is to be fixed where only figures of the server's records are known: each rule, by figures that it fits and by
such that it does not."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.advice import figures, response
from tailrace.advice.figures import Figures
from tailrace.advice.finding import MANY, PAUSE, SMALL, WHOLE, Finding
from tailrace.doctor.findings import RULES

DOCS = (Path(__file__).resolve().parents[2] / "docs/doctor.md").read_text()
# Ten responses of one block each, in one write.
WELL = Figures(
    responses=10,
    held=20.0,
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
    "waiting-for-client": (replace(WELL, blocked=10 * PAUSE), [replace(WELL, blocked=9 * PAUSE)]),
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
        replace(DIRECT, bytes=10 * WHOLE, blocks=160),
        [
            replace(DIRECT, bytes=10 * WHOLE - 1, blocks=160),
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
    assert replace(WELL, held=1000.0, delivery=1000.0).cost == 0.0
    assert replace(DIRECT, held=1000.0, delivery=1000.0).cost > 900.0
    # One system call for each 256 KiB.
    assert replace(DIRECT, bytes=10 << 20, writes=50).more_calls == 0.0
    assert replace(DIRECT, writes=50).more_calls == 40.0
    # A socket may take it in several writes.
    assert replace(WELL, writes=50).more_calls == 0.0


def test_what_the_application_takes_until_the_first_block_is_a_cost_and_a_stream_of_events_is_none():
    assert replace(WELL, held=17_000.0, delivery=0.0).cost == 17_000.0
    events = replace(DIRECT, held=17_000.0, delivery=0.0, event_streams=10, streaming=17_000.0, chunked=10, bytes=10)
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
        ({"iterating": 2.0, "path": "direct", "blocks": 10, "application": 0.2}, ["starving"]),
        ({"iterating": 2.0, "blocked": 1.99, "path": "spilled"}, ["waiting-for-client"]),
        ({"iterating": 2.0, "path": "coalesced", "blocks": 10**5, "body_bytes": 10**6}, ["small-blocks"]),
    ],
)
def test_a_response_has_what_its_record_says(record, expected):
    assert keys(response.findings(RECORD | record, "shop:app")) == expected


def test_the_docs_have_each_key_of_a_running_server():
    table = re.search(r"<!-- live -->\n(.*?)\n\n", DOCS, re.DOTALL)
    assert table
    described = re.findall(r"^\| `([\w-]+)` \|", table[1], re.MULTILINE)
    of_records = ["deadline", "cut", "queue", "before-first-block"]
    assert described == [*figures.KEYS, *of_records]
    # The rest is described above.
    assert set(figures.KEYS) - {rule.key for rule in RULES} == {"waiting-for-client"}
