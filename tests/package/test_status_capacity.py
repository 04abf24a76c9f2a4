"""What HAProxy's agent-check is told: weight, drain and down, from a snapshot."""

import pytest
from package.in_status import Board, shared, worker

from tailrace.status import capacity, snapshot, state
from tailrace.status.capacity import WINDOW, Mean


def take(*workers, places=None, **more):
    memory = shared(*workers, **{"threads_each": 8, **more})
    return snapshot.take(memory, Board(*(places or [{}] * len(workers))), lambda: 10.0, with_counts=False)


@pytest.mark.parametrize(
    ("running", "queued", "left"),
    [
        (0, 0, 1.0),
        (2, 0, 0.75),
        (8, 0, 0.0),
        (8, 100, 0.0),
        # A worker whose deadlines have passed may run more than it has threads.
        (9, 0, 0.0),
        # Threads are free and yet requests wait: the interpreter is the limit.
        (2, 2, 0.375),
        (1, 13, 0.0625),
        (0, 1, 0.5),
    ],
)
def test_what_is_left_is_the_share_of_free_threads_less_what_waits(running, queued, left):
    taken = take(worker(), places=[{"running": running, "queued": queued}])
    assert capacity.left(taken) == pytest.approx(left)


@pytest.mark.parametrize(
    ("names", "wanted", "left"),
    [
        ([state.SERVING, state.SERVING], 2, 1.0),
        ([state.SERVING], 2, 0.5),
        ([state.SERVING, state.HUNG], 2, 0.5),
        ([state.SERVING, state.STARTING], 2, 0.5),
        # A reload: the successors serve beside those that they replace.
        ([state.SERVING, state.SERVING, state.SERVING], 2, 1.0),
        ([state.SERVING, state.DRAINING], 1, 1.0),
        ([], 1, 0.0),
    ],
)
def test_only_workers_that_serve_have_capacity(names, wanted, left):
    workers = [worker(number, name) for number, name in enumerate(names, 1)]
    assert capacity.left(take(*workers, wanted=wanted)) == left


@pytest.mark.parametrize(("mean", "told"), [(1.0, "100"), (0.747, "75"), (0.004, "1"), (0.0, "1")])
def test_a_server_that_serves_has_a_weight_of_one_percent_at_least(mean, told):
    assert capacity.line(take(worker()), mean, is_new=False) == f"up {told}%\n"
    assert capacity.line(take(worker()), mean, is_new=True) == f"ready up {told}%\n"


def test_a_server_that_stops_drains_whatever_its_workers_do():
    for workers in ([worker()], [worker(1, state.DRAINING)], []):
        assert capacity.line(take(*workers, stopping=True), 1.0, is_new=True) == "drain\n"


@pytest.mark.parametrize(
    ("names", "more", "why"),
    [
        ([state.STARTING], {"has_served": False}, "starting: no worker is ready yet"),
        ([state.HUNG], {}, "1 of 1 workers are hung, and none is serving"),
        ([], {}, "no worker is serving: the last one has ended; another worker will start"),
    ],
)
def test_a_server_without_a_worker_that_serves_is_down_and_says_why(names, more, why):
    workers = [worker(number, name) for number, name in enumerate(names, 1)]
    assert capacity.line(take(*workers, **more), 1.0, is_new=True) == f"down #{why}\n"


def test_the_mean_is_that_of_a_second():
    mean = Mean()
    assert mean.add(1.0, 100.0) == 1.0
    assert mean.add(0.0, 100.5) == 0.5
    assert mean.add(0.0, 100.0 + WINDOW) == pytest.approx(1 / 3)
    # The first one is too old.
    assert mean.add(0.0, 100.25 + WINDOW) == 0.0
    mean.forget()
    assert mean.add(1.0, 101.5) == 1.0
