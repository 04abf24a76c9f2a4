"""What is left of workers that have ended."""

import pytest
from package.in_status import COUNTERS, DELIVERIES

from tailrace.master import recycle, tally
from tailrace.master.plan import Verdict
from tailrace.master.workers import Worker


@pytest.mark.parametrize(
    ("verdict", "replaced_for", "reason"),
    [
        (Verdict.CRASHED, "", "crash"),
        (Verdict.CRASHED, "reload", "crash"),
        (Verdict.EXPECTED, "", None),
        (Verdict.EXPECTED, "hang", "hang"),
        (Verdict.EXPECTED, "max_requests", "max_requests"),
        (Verdict.NOT_READY, "", "load_failure"),
        (Verdict.RELOAD_FAILED, "", "load_failure"),
    ],
)
def test_a_worker_that_ends_is_counted_by_why_it_was_replaced(verdict, replaced_for, reason):
    counts = tally.Tally(DELIVERIES)
    ended = Worker(1, 0, 1, 100, 0.0, replaced_for=replaced_for)
    responses = {"classes": {"2xx": 4, "5xx": 1}}
    counts.has_ended(ended, verdict, {**COUNTERS, "requests": 5, "connections": 3}, responses)
    before = counts.delivered
    counts.has_ended(ended, Verdict.EXPECTED if reason is None else verdict, {**COUNTERS, "requests": 2}, responses)
    assert counts.delivered == {**DELIVERIES, "classes": {**DELIVERIES["classes"], "2xx": 8, "5xx": 2}}
    # What the status process was told is not changed afterwards.
    assert before["classes"]["2xx"] == 4
    assert counts.restarts == {**dict.fromkeys(tally.REASONS, 0), **({reason: 2} if reason else {})}
    assert (counts.ended["requests"], "connections" in counts.ended) == (7, False)


def test_each_limit_has_a_reason():
    limits = recycle.Limits(requests=1, lifetime=1.0, rss=1)
    found = set()
    for counters, resident, now in (
        ({"stuck_ms": 1_000_000, "requests": 0}, 0, 0.0),
        ({"stuck_ms": 0, "requests": 1}, 0, 0.0),
        ({"stuck_ms": 0, "requests": 0}, 0, 9.0),
        ({"stuck_ms": 0, "requests": 0}, 2, 0.0),
    ):
        allowance = recycle.Allowance(limits.requests, limits.lifetime, limits.rss)
        assert allowance.exceeded(now, counters, resident)
        found.add(allowance.reason)
    assert found == set(tally.REASONS) - {"crash", "hang", "load_failure", "reload", "refork"}
