"""A snapshot for statsd, with tags as DogStatsD has them. No socket or clock is used here.

The names are those of Prometheus with a point after `tailrace`. A counter is sent as what was added since the last
time; of a histogram of times, its count and its sum; of another one, its sum. There is no tag for a single worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tailrace.status import series
from tailrace.status.counts import Histogram
from tailrace.status.snapshot import Snapshot
from tailrace.status.table import GAUGE

# Most bytes of a datagram: what passes through every Ethernet in one piece.
MAX_PACKET: Final = 1432


class Lines:
    """The lines of one snapshot after the other."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def of(self, taken: Snapshot) -> list[str]:
        """The lines of a snapshot. A counter that has not grown has none."""
        gauges, counters = _figures(taken)
        before, self._before = self._before, counters
        grown = {key: value - before.get(key, 0) for key, value in counters.items()}
        lines = [_line(key, value, "g") for key, value in gauges.items()]
        return lines + [_line(key, more, "c") for key, more in grown.items() if more > 0]


def packets(lines: Iterable[str]) -> Iterator[bytes]:
    """The lines in datagrams."""
    packet = b""
    for line in lines:
        text = line.encode()
        if packet and len(packet) + 1 + len(text) > MAX_PACKET:
            yield packet
            packet = b""
        packet = packet + b"\n" + text if packet else text
    if packet:
        yield packet


def _figures(taken: Snapshot) -> tuple[dict[str, float], dict[str, float]]:
    """Gauges and counters, each by name and tag."""
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    for metric, values in series.of(taken):
        name = metric.name.replace("tailrace_", "tailrace.", 1)
        of_kind = gauges if metric.kind == GAUGE else counters
        for label, value in values.items():
            tag = f"|#{metric.label}:{label}" if metric.label else ""
            if not isinstance(value, Histogram):
                of_kind[name + tag] = value
            elif name.endswith("_seconds"):
                times = name.removesuffix("_seconds")
                counters[f"{times}.count{tag}"] = value.count
                counters[f"{times}.milliseconds{tag}"] = value.sum * 1000
            else:
                counters[name + tag] = value.sum
    return gauges, counters


def _line(key: str, value: float, kind: str) -> str:
    name, bar, tag = key.partition("|")
    return f"{name}:{round(value, 3):.15g}|{kind}{bar}{tag}"
