"""`/metrics`: a snapshot in the text format of Prometheus. Imports `prometheus_client`, which the extra `status` has.

There is no label for a single worker: its series would end whenever it is replaced. `/status.json` has each worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

from tailrace.status import counts
from tailrace.status.memory import Memory
from tailrace.status.snapshot import Snapshot
from tailrace.status.state import STATES

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# The counters of the scoreboard that only grow: the name here, without `_total`, and the help.
COUNTERS: Final = {
    "accepted": ("tailrace_connections_accepted", "Connections that were accepted."),
    "requests": ("tailrace_requests", "Requests that the application has answered."),
    "refused": ("tailrace_refused", "Requests and connections that the server itself has refused."),
    "timed_out": ("tailrace_requests_timed_out", "Requests that were not answered before their deadline."),
    "given_up": ("tailrace_requests_given_up", "Unfinished requests that were given up to make room for others."),
}
# And its gauges.
GAUGES: Final = {
    "connections": ("tailrace_connections", "Open connections."),
    "queued": ("tailrace_queue_requests", "Complete requests that wait for a thread or greenlet."),
    "running": ("tailrace_running_requests", "Requests that the application runs now."),
    "stuck": ("tailrace_stuck_threads", "Threads that are still in a request whose deadline has passed."),
    "held": ("tailrace_client_memory_bytes", "Memory that is held for clients."),
    "heads": ("tailrace_request_head_memory_bytes", "The part of it for request heads, and for requests behind them."),
    "buffered": ("tailrace_response_memory_bytes", "Memory of responses that clients have not accepted yet."),
    "bodies": ("tailrace_request_body_memory_bytes", "Memory of request bodies."),
}
# Counts of responses by a label: the group, the name here, the label, and the help.
BY_LABEL: Final = (
    ("classes", "tailrace_responses", "class", "Responses by the class of their status."),
    ("endings", "tailrace_responses_ended", "ending", "Responses by how they ended."),
    ("paths", "tailrace_responses_delivered", "path", "Responses by how their bodies were sent."),
)
# Their sizes, added.
SIZES: Final = {
    "held": ("tailrace_responses_held", "Responses that were held, to be sent together with others."),
    "body_bytes": ("tailrace_response_body_bytes", "Bytes of response bodies that were sent or queued."),
    "blocks": ("tailrace_response_blocks", "Non-empty blocks that the application gave."),
}
# Threads and connections by their state.
STATES_OF: Final = {
    "threads": ("tailrace_threads", "Threads by what they do; with greenlets, those that run requests."),
    "connections": ("tailrace_connections_by_state", "Open connections by what goes on on them."),
}


def exposition(taken: Snapshot, memory: Mapping[int, Memory], version: str) -> bytes:
    """The metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(taken, memory, version))
    return generate_latest(registry)


class _Collector:
    def __init__(self, taken: Snapshot, memory: Mapping[int, Memory], version: str) -> None:
        self._taken, self._memory, self._version = taken, memory, version

    def describe(self) -> list[Metric]:
        """Nothing: the registry is used once, so its names cannot collide."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        taken, state = self._taken, self._taken.state
        names = {"version": self._version, "application": state.application}
        yield InfoMetricFamily("tailrace", "The server.", value=names)
        yield GaugeMetricFamily("tailrace_uptime_seconds", "Time since the master started.", taken.now - state.began)
        yield GaugeMetricFamily("tailrace_ready", "1 while /ready answers 200, else 0.", int(not taken.not_ready))
        yield GaugeMetricFamily("tailrace_workers_wanted", "Workers that are to serve.", state.wanted)
        workers = GaugeMetricFamily("tailrace_workers", "Workers by state.", labels=["state"])
        found = Counter(worker.state for worker in taken.workers)
        for name in STATES:
            workers.add_metric([name], found[name])
        yield workers
        restarts = CounterMetricFamily(
            "tailrace_worker_restarts", "Workers that were replaced, or failed to load, by reason.", labels=["reason"]
        )
        for reason, count in state.restarts.items():
            restarts.add_metric([reason], count)
        yield restarts
        totals = taken.totals
        for key, (name, said) in COUNTERS.items():
            yield CounterMetricFamily(name, said, totals[key])
        for key, (name, said) in GAUGES.items():
            yield GaugeMetricFamily(name, said, totals.get(key, 0))
        for group, (name, said) in STATES_OF.items():
            states = GaugeMetricFamily(name, said, labels=["state"])
            for state_name, count in taken.states[group].items():
                states.add_metric([state_name], count)
            yield states
        yield from self._responses()
        yield from self._memory_of_workers()

    def _responses(self) -> Iterator[Metric]:
        delivered = self._taken.deliveries
        for group, name, label, said in BY_LABEL:
            responses = CounterMetricFamily(name, said, labels=[label])
            for value, count in delivered[group].items():
                responses.add_metric([value], count)
            yield responses
        for key, (name, said) in SIZES.items():
            yield CounterMetricFamily(name, said, delivered["sizes"][key])
        writes = HistogramMetricFamily("tailrace_response_writes", "Write system calls of a response.")
        _add(writes, [], counts.writes(delivered))
        yield writes
        phases = HistogramMetricFamily(
            "tailrace_request_phase_seconds", "How long requests of the application took, by phase.", labels=["phase"]
        )
        for phase in counts.PHASES:
            _add(phases, [phase], counts.phase(delivered, phase))
        yield phases

    def _memory_of_workers(self) -> Iterator[Metric]:
        resident = [each.rss for each in self._memory.values() if each.rss is not None]
        shared = [each.pss for each in self._memory.values() if each.pss is not None]
        yield GaugeMetricFamily(
            "tailrace_workers_resident_memory_bytes",
            "Resident memory of the workers, added; a page that several share counts for each.",
            sum(resident),
        )
        if len(shared) == len(self._memory):
            yield GaugeMetricFamily(
                "tailrace_workers_proportional_memory_bytes",
                "Memory of the workers, in which a page that several share counts once.",
                sum(shared),
            )


def _add(family: HistogramMetricFamily, labels: list[str], found: counts.Histogram) -> None:
    family.add_metric(labels, buckets=list(found.buckets.items()), sum_value=found.sum)
