"""`/metrics`: a snapshot in the text format of Prometheus. Imports `prometheus_client`, which the extra `status` has.

There is no label for a single worker: its series would end whenever it is replaced. `/status.json` has each worker.
"""

from __future__ import annotations

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

from tailrace.status import counts, series
from tailrace.status.memory import Memory
from tailrace.status.snapshot import Snapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


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
        names = {"version": self._version, "application": self._taken.state.application}
        yield InfoMetricFamily("tailrace", "The server.", value=names)
        for each in series.of(self._taken):
            kind = CounterMetricFamily if each.is_counter else GaugeMetricFamily
            family = kind(each.name, each.said, labels=[each.label] if each.label else None)
            for label, value in each.values.items():
                family.add_metric([label] if each.label else [], value)
            yield family
        yield from self._histograms()
        yield from self._memory_of_workers()

    def _histograms(self) -> Iterator[Metric]:
        delivered = self._taken.deliveries
        writes = HistogramMetricFamily("tailrace_response_writes", "Write system calls of a response.")
        _add(writes, [], counts.writes(delivered))
        yield writes
        said = "How long requests of the application took, by phase."
        phases = HistogramMetricFamily("tailrace_request_phase_seconds", said, labels=["phase"])
        for phase in counts.PHASES:
            _add(phases, [phase], counts.coarse(counts.phase(delivered, phase)))
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
