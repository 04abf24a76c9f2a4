"""When a worker has served long enough."""

import random

import pytest
from harness.settings import server_settings

from tailrace.master.recycle import STUCK_GRACE, Due, Limits, Reason, outgrown

FULL = Limits(requests=500, lifetime=1000.0, rss=1 << 30)


def counters(requests=0, stuck_ms=0):
    return {"requests": requests, "stuck_ms": stuck_ms}


def draw(limits, resident=0, seed=1):
    return limits.draw(5000.0, resident, random.Random(seed))


def test_the_options_with_0_for_no_limit():
    assert Limits.of(server_settings()) == Limits()
    chosen = server_settings(max_requests=500, max_lifetime=1000.0, max_rss=1 << 30)
    assert Limits.of(chosen) == FULL
    assert Limits.of(server_settings(max_rss="auto")) == Limits()


def test_each_worker_draws_its_own_limits_within_bounds():
    drawn = [draw(FULL, seed=seed) for seed in range(500)]
    requests = {each.requests for each in drawn}
    assert min(requests) >= 500
    assert max(requests) <= 550
    assert len(requests) > 20
    ends = {each.until for each in drawn}
    assert min(ends) >= 5900
    assert max(ends) <= 6000
    assert len(ends) > 20


@pytest.mark.parametrize(
    ("requests", "now", "resident", "reason"),
    [
        (499, 5001, 0, ""),
        (550, 5001, 0, "has processed 550 requests (--max-requests)"),
        (0, 6000, 0, "has reached its lifetime (--max-lifetime)"),
        (0, 5001, 1 << 30, ""),
        (0, 5001, (1 << 30) + (64 << 20), "has 1088 MiB in memory (--max-rss)"),
    ],
)
def test_what_is_exceeded_is_said(requests, now, resident, reason):
    due = draw(FULL).exceeded(now, counters(requests), resident)
    assert (due.detail if due else "") == reason


def test_a_worker_without_limits_or_that_begins_above_them_is_not_replaced_for_them():
    assert draw(Limits()).exceeded(1e12, counters(1 << 60), 1 << 60) is None
    assert draw(FULL, resident=2 << 30).exceeded(5001, counters(), 3 << 30) is None


def test_a_thread_is_stuck_that_does_not_come_back_in_time():
    allowance = draw(Limits())
    assert allowance.exceeded(1e6, counters(stuck_ms=int(1000 * STUCK_GRACE) - 1), 0) is None
    due = allowance.exceeded(1e6, counters(stuck_ms=int(1000 * STUCK_GRACE)), 0)
    assert due == Due(Reason.STUCK_THREAD, "has a thread in which a request past its deadline does not end")


@pytest.mark.parametrize(
    ("used", "workers", "preloaded", "replaced"),
    [
        # A successor of 100 still fits in 460, or does not.
        (360, [(100, 200)], False, None),
        (361, [(100, 200)], False, 0),
        # With --preload, it needs nothing of its own.
        (460, [(100, 200)], True, None),
        (461, [(100, 200)], True, 0),
        # The worker that has grown the most, not the largest.
        (400, [(100, 130), (100, 150), (200, 220)], False, 1),
        # The others need the memory.
        (400, [(100, 124), (100, 100)], False, None),
        (400, [(100, 125), (100, 100)], False, 0),
        (400, [(100, 0)], False, None),
    ],
)
def test_the_worker_that_has_grown_is_replaced_before_the_memory_is_used_up(used, workers, preloaded, replaced):
    assert outgrown(460, used, workers, shares_memory=preloaded) == replaced
