"""Counters and gauges of a snapshot, each with its name and its help: what Prometheus and statsd are given alike.

Thread: any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tailrace.status.snapshot import Snapshot
from tailrace.status.state import STATES

# The counters of the scoreboard that only grow: the name here, and the help.
COUNTERS: Final = {
    "accepted": ("tailrace_connections_accepted", "Connections accepted."),
    "requests": ("tailrace_requests", "Requests answered by the application."),
    "static": ("tailrace_static_responses", "Responses of --static and --overlay, without the application."),
    "refused": ("tailrace_refused", "Requests and connections refused by the server itself."),
    "timed_out": ("tailrace_requests_timed_out", "Requests not answered before their deadline."),
    "given_up": ("tailrace_requests_given_up", "Incomplete requests shed to make room for others."),
}
# And its gauges.
GAUGES: Final = {
    "connections": ("tailrace_connections", "Open connections."),
    "queued": ("tailrace_queue_requests", "Complete requests waiting for a thread or greenlet."),
    "running": ("tailrace_running_requests", "Requests running in the application."),
    "stuck": ("tailrace_stuck_threads", "Threads still in a request whose deadline has passed."),
    "held": ("tailrace_client_memory_bytes", "Memory held for clients."),
    "heads": (
        "tailrace_request_head_memory_bytes",
        "Memory of request heads, and of requests that arrived behind them.",
    ),
    "buffered": ("tailrace_response_memory_bytes", "Memory of responses that clients have not accepted yet."),
    "bodies": ("tailrace_request_body_memory_bytes", "Memory of request bodies."),
}
# Counts of responses by a label: the group, the name here, the label, and the help.
_BY_LABEL: Final = (
    ("classes", "tailrace_responses", "class", "Responses by the class of their status."),
    ("endings", "tailrace_responses_ended", "ending", "Responses by ending."),
    ("paths", "tailrace_responses_delivered", "path", "Responses by the delivery of their bodies."),
)
# Their sizes, added.
_SIZES: Final = {
    "held": ("tailrace_responses_held", "Responses held, to be sent together with others."),
    "body_bytes": ("tailrace_response_body_bytes", "Bytes of response bodies, sent or queued."),
    "blocks": ("tailrace_response_blocks", "Non-empty blocks returned by the application."),
}
# Threads and connections by their state.
_STATES_OF: Final = {
    "threads": ("tailrace_threads", "Threads by state; with greenlets, the threads that run requests."),
    "connections": ("tailrace_connections_by_state", "Open connections by state."),
}


class Series(NamedTuple):
    """values: by the value of the label; without a label it is empty. said: the help, a sentence."""

    name: str
    said: str
    is_counter: bool
    label: str
    values: Mapping[str, float]


def of(taken: Snapshot) -> Iterator[Series]:
    """All of a snapshot, but for histograms."""
    state, totals, delivered = taken.state, taken.totals, taken.deliveries
    yield _gauge("tailrace_uptime_seconds", "Time since the master started.", taken.now - state.began)
    yield _gauge("tailrace_ready", "1 while /ready answers 200, else 0.", int(not taken.not_ready))
    yield _gauge("tailrace_workers_wanted", "Workers wanted.", state.wanted)
    found = Counter(worker.state for worker in taken.workers)
    workers = {name: found[name] for name in STATES}
    yield Series("tailrace_workers", "Workers by state.", False, "state", workers)
    said = "Workers replaced, or failed to load, by reason."
    yield Series("tailrace_worker_restarts", said, True, "reason", state.restarts)
    for key, (name, said) in COUNTERS.items():
        yield _counter(name, said, totals[key])
    for key, (name, said) in GAUGES.items():
        yield _gauge(name, said, totals.get(key, 0))
    for group, (name, said) in _STATES_OF.items():
        yield Series(name, said, False, "state", taken.states[group])
    for group, name, label, said in _BY_LABEL:
        yield Series(name, said, True, label, delivered[group])
    for key, (name, said) in _SIZES.items():
        yield _counter(name, said, delivered["sizes"][key])


def _gauge(name: str, said: str, value: float) -> Series:
    return Series(name, said, False, "", {"": value})


def _counter(name: str, said: str, value: float) -> Series:
    return Series(name, said, True, "", {"": value})
