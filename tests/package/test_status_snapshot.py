"""The server at one moment: readiness, totals, hung workers."""

import pytest
from package.in_status import DELIVERIES, Board, shared, told, worker

from tailrace.status import snapshot, state


def take(memory, board, now=10.0, **more):
    return snapshot.take(memory, board, lambda: now, **more)


@pytest.mark.parametrize(
    ("names", "more", "why"),
    [
        ([], {"has_served": False}, "starting: no worker is ready yet"),
        ([state.STARTING], {"has_served": False}, "starting: no worker is ready yet"),
        ([state.SERVING, state.STARTING], {}, ""),
        ([state.SERVING, state.HUNG], {}, ""),
        ([state.DRAINING, state.SERVING], {}, ""),
        ([state.SERVING], {"stopping": True}, "draining: the server is finishing its requests before it stops"),
        ([], {"stopping": True, "has_served": False}, "draining: the server is finishing its requests before it stops"),
        ([state.HUNG, state.STARTING], {}, "1 of 2 workers are hung, and none is serving"),
        ([], {}, "no worker is serving: the last one has ended; another worker will start"),
        ([state.STARTING], {}, "no worker is serving: the last one has ended; another worker is starting"),
        (
            [state.DRAINING, state.STARTING],
            {},
            "no worker is serving: the last one is draining; another worker is starting",
        ),
    ],
)
def test_ready_is_who_has_a_worker_that_serves(names, more, why):
    workers = [worker(number, name) for number, name in enumerate(names, 1)]
    taken = take(shared(*workers, **more), Board(*[{}] * len(workers)))
    assert taken.not_ready == why


@pytest.mark.parametrize(
    ("heartbeat", "asked", "name", "seconds"),
    [
        (9.5, None, state.SERVING, 5.0),
        (0, None, state.SERVING, 5.0),
        (9.5, 8.0, state.SERVING, 5.0),
        (9.5, 6.5, state.HUNG, 3.5),
        (6.0, None, state.HUNG, 4.0),
    ],
)
def test_a_worker_without_a_sign_of_life_for_three_seconds_hangs(heartbeat, asked, name, seconds):
    signs = int(heartbeat * 1e9), None if asked is None else int(asked * 1e9)
    (found,) = take(shared(worker()), Board({}, signs=signs)).workers
    assert (found.state, found.seconds) == (name, pytest.approx(seconds))
    # With --debug a breakpoint stops the only thread.
    (found,) = take(shared(worker(), may_hang=False), Board({}, signs=signs)).workers
    assert found.state == state.SERVING


def test_totals_have_the_counters_of_workers_that_have_ended():
    board = Board({"requests": 3, "connections": 2}, {"requests": 4, "connections": 1})
    totals = take(shared(worker(1), worker(2), ended={"requests": 10}), board).totals
    assert (totals["requests"], totals["connections"], totals["refused"]) == (17, 3, 0)


def test_responses_of_all_workers_are_added_to_those_of_workers_that_have_ended():
    board = Board({}, {}, deliveries={"classes": {"2xx": 3}, "total": {"0.01": 2}}, states={"threads": {"parked": 4}})
    ended = {**DELIVERIES, "classes": {**DELIVERIES["classes"], "2xx": 10, "4xx": 1}}
    taken = take(shared(worker(1), worker(2), delivered=ended), board)
    assert (taken.deliveries["classes"]["2xx"], taken.deliveries["classes"]["4xx"]) == (16, 1)
    assert taken.deliveries["total"] == {"0.01": 4, "sum_ns": 0}
    assert (taken.states["threads"]["parked"], taken.states["connections"]["idle"]) == (8, 0)


def test_counters_that_were_read_while_a_worker_ended_are_read_again():
    class Ending(Board):
        """The worker ends, and its place is cleared, while its counters are read."""

        reads = 0

        def counters(self, place, /):
            self.reads += 1
            if self.reads == 1:
                memory.write(told(ended={"requests": 5}))
                self.places[0] = {"requests": 0}
            return super().counters(place)

    memory, board = shared(worker()), Ending({"requests": 5})
    assert take(memory, board).totals["requests"] == 5
    assert board.reads == 1
