"""The server at one moment: what the master tells, together with the counters of the workers on the scoreboard.

No process is asked for anything, so the snapshot is complete also while every worker is stuck or dead. Whether a worker
hangs is also seen here, earlier than `--hang-timeout` has the master kill it.

Thread: any of the status process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace.status import counts
from tailrace.status.state import DRAINING, HUNG, SERVING, STARTING, SharedState, State, WorkerState
from tailrace.status.table import FIGURES

if TYPE_CHECKING:
    from tailrace._tailrace import Scoreboard

# A worker counts as hung when its heartbeat, or an answer of its interpreter, is late for this long (seconds).
# Heartbeats come once a second, and one may be late.
LATE: Final = 3.0
# At most so many requests in flight are listed, the oldest first: there may be ten thousand greenlets.
MAX_REQUESTS: Final = 1000
_ATTEMPTS: Final = 100


@dataclass(frozen=True)
class WorkerSnapshot:
    """One worker. seconds: for how long it has been in this state. clock: since when, by the wall clock."""

    number: int
    pid: int
    place: int
    generation: int
    state: str
    seconds: float
    clock: float
    counters: Mapping[str, int]
    states: counts.Counts
    deliveries: counts.Counts
    requests: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """The server at one moment; `now` by the monotonic clock.

    endpoints, recent: of each worker what the scoreboard has, and of all that have ended.
    """

    state: State
    now: float
    workers: list[WorkerSnapshot]
    endpoints: list[list[dict[str, Any]]] = field(default_factory=list)
    recent: list[Mapping[str, list[dict[str, Any]]]] = field(default_factory=list)

    @property
    def totals(self) -> dict[str, int]:
        """Counters and gauges of all workers together; counters with those of the workers that have ended."""
        total = Counter({metric.key: self.state.ended.get(metric.key, 0) for metric in FIGURES})
        for worker in self.workers:
            total.update(worker.counters)
        return dict(total)

    @property
    def states(self) -> counts.Counts:
        """Threads and connections of all workers together, by state."""
        empty: counts.Counts = {"threads": {}, "connections": {}}
        return counts.added([empty, *(worker.states for worker in self.workers)])

    @property
    def deliveries(self) -> counts.Counts:
        """The counts of the responses of all workers, with those of the workers that have ended."""
        return counts.added([self.state.delivered, *(worker.deliveries for worker in self.workers)])

    @property
    def not_ready(self) -> str:
        """Why no worker can serve, in one line; empty when one can."""
        if self.state.stopping:
            return "draining: the server is finishing its requests before it stops"
        found = Counter(worker.state for worker in self.workers)
        if found[SERVING]:
            return ""
        if found[HUNG]:
            return f"{found[HUNG]} of {len(self.workers)} workers are hung, and none is serving"
        if not self.state.has_served:
            return "starting: no worker is ready yet"
        what = "another worker is starting" if found[STARTING] else "another worker will start"
        return (
            f"no worker is serving: {'the last one is draining' if found[DRAINING] else 'the last one has ended'}; "
            f"{what}"
        )


def take(
    shared: SharedState, board: Scoreboard, clock: Any, *, with_requests: bool = False, with_counts: bool = True
) -> Snapshot:
    """Takes a snapshot. clock: the monotonic one, a function. with_counts: also of finished responses, and states of
    threads and connections, which take most of the time. Raises OSError when the master does not let it.

    The master tells that a worker has ended before it clears the worker's counters. So counters that were read while
    the state stayed the same belong to it, and none is counted twice or not at all.
    """
    for _ in range(_ATTEMPTS):
        serial, state = shared.read()
        now = clock()
        found = at_once(state, board, now, with_requests=with_requests, with_counts=with_counts)
        if shared.read()[0] == serial:
            return found
    raise OSError("the state of the workers changes too often")


def at_once(
    state: State, board: Scoreboard, now: float, *, with_requests: bool = False, with_counts: bool = True
) -> Snapshot:
    """As `take`, for the master: nobody else changes the state. now: by the monotonic clock."""
    workers = [_worker(each, board, state, now, with_requests, with_counts) for each in state.workers]
    if not with_requests:
        return Snapshot(state, now, workers)
    return Snapshot(
        *(state, now, workers),
        endpoints=[board.endpoints(place) for place in (*(each.place for each in workers), None)],
        recent=[*(_recent(each, board) for each in workers), board.recent(None)],
    )


def _recent(worker: WorkerSnapshot, board: Scoreboard) -> Mapping[str, list[dict[str, Any]]]:
    found = board.recent(worker.place)
    at = {"worker": worker.number, "pid": worker.pid}
    return {kind: [{**record, **at} for record in records] for kind, records in found.items()}


def _worker(
    told: WorkerState, board: Scoreboard, state: State, now: float, with_requests: bool, with_counts: bool
) -> WorkerSnapshot:
    counters = board.counters(told.place)
    name, seconds, clock = told.state, now - told.since, told.clock
    if state.may_hang and name in (SERVING, DRAINING):
        heartbeat, asked = board.signs_of_life(told.place)
        silent = now - heartbeat / 1e9 if heartbeat else 0.0
        late = max(silent, now - asked / 1e9 if asked is not None else 0.0)
        if late >= LATE:
            name, clock, seconds = HUNG, clock + max(0.0, seconds - late), min(seconds, late)
    return WorkerSnapshot(
        *(told.number, told.pid, told.place, told.generation, name, max(0.0, seconds), clock),
        {metric.key: counters[metric.key] for metric in FIGURES},
        board.states(told.place) if with_counts else {},
        board.deliveries(told.place) if with_counts else {},
        board.in_flight(told.place) if with_requests else [],
    )
