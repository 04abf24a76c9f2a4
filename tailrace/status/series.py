"""The values of the metrics in a snapshot: what Prometheus and statsd are given alike.

Thread: any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.status import counts
from tailrace.status.counts import Histogram
from tailrace.status.snapshot import Snapshot
from tailrace.status.state import STATES
from tailrace.status.table import OF_BUS, OF_HOLDER, OF_SNAPSHOT, Metric


class Series(NamedTuple):
    """values: by the value of the label; without a label it is empty."""

    metric: Metric
    values: Mapping[str, float | Histogram]


def of(taken: Snapshot) -> Iterator[Series]:
    """All of a snapshot."""
    sources = _sources(taken)
    for metric in OF_SNAPSHOT:
        found = sources[metric.source][metric.key]
        yield Series(metric, found if metric.label else {"": found})


def of_holder(held: Mapping[str, Any]) -> Iterator[Series]:
    """All of the process that holds connections. held: as `held.Reader` reads it."""
    for metric in OF_HOLDER:
        found = held[metric.key]
        yield Series(metric, found if metric.label else {"": found})
    if held["bus"] is not None:
        for metric in OF_BUS:
            yield Series(metric, {"": held["bus"][metric.key]})


def _sources(taken: Snapshot) -> Mapping[str, Mapping[str, Any]]:
    """By source and key: the value, or values by label."""
    delivered = taken.deliveries
    return {
        "master": _of_master(taken),
        "counters": taken.totals,
        "states": taken.states,
        "deliveries": delivered,
        "sizes": delivered["sizes"],
        "histograms": {
            "writes": counts.writes(delivered),
            "phases": {name: counts.coarse(counts.phase(delivered, name)) for name in counts.PHASES},
        },
    }


def _of_master(taken: Snapshot) -> Mapping[str, Any]:
    found = Counter(worker.state for worker in taken.workers)
    return {
        "uptime": taken.now - taken.state.began,
        "ready": int(not taken.not_ready),
        "wanted": taken.state.wanted,
        "workers": {name: found[name] for name in STATES},
        "restarts": taken.state.restarts,
    }
