"""What is left of workers that have ended."""

import pytest
from package.in_status import COUNTERS, DELIVERIES
from package.plan_bench import a_worker

from tailrace.master import recycle, tally
from tailrace.master.plan import Verdict
from tailrace.master.recycle import Reason


@pytest.mark.parametrize(
    ("verdict", "replaced_for", "reason"),
    [
        (Verdict.CRASHED, None, Reason.CRASH),
        (Verdict.CRASHED, Reason.RELOAD, Reason.CRASH),
        (Verdict.EXPECTED, None, None),
        (Verdict.EXPECTED, Reason.HANG, Reason.HANG),
        (Verdict.EXPECTED, Reason.MAX_REQUESTS, Reason.MAX_REQUESTS),
        (Verdict.NOT_READY, None, Reason.LOAD_FAILURE),
        (Verdict.RELOAD_FAILED, None, Reason.LOAD_FAILURE),
    ],
)
def test_a_worker_that_ends_is_counted_by_why_it_was_replaced(verdict, replaced_for, reason):
    counts = tally.Tally(DELIVERIES)
    ended = a_worker(replaced_for=replaced_for)
    responses = {"classes": {"2xx": 4, "5xx": 1}}
    counts.has_ended(ended, verdict, {**COUNTERS, "requests": 5, "connections": 3}, responses, 0)
    before = counts.delivered
    again = Verdict.EXPECTED if reason is None else verdict
    counts.has_ended(ended, again, {**COUNTERS, "requests": 2}, responses, 3)
    # The requests of a worker that crashed or hung are lost.
    broken = 3 if reason in (Reason.CRASH, Reason.HANG) else 0
    assert counts.delivered == {
        **DELIVERIES,
        "classes": {**DELIVERIES["classes"], "2xx": 8, "5xx": 2},
        "endings": {**DELIVERIES["endings"], "broken": broken},
    }
    # What the status process was told is not changed afterwards.
    assert before["classes"]["2xx"] == 4
    assert counts.restarts == {**dict.fromkeys(Reason, 0), **({reason: 2} if reason else {})}
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
        found.add(allowance.exceeded(now, counters, resident).reason)
    assert found == set(Reason) - {Reason.CRASH, Reason.HANG, Reason.LOAD_FAILURE, Reason.RELOAD}
