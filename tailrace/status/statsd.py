"""A snapshot for statsd, with tags as DogStatsD has them. No socket or clock is used here.

The names are those of Prometheus with a point after `tailrace`. A counter is sent as what was added since the last
time; of a histogram, its count and its sum. There is no tag for a single worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tailrace.status import counts, series
from tailrace.status.snapshot import Snapshot

# Most bytes of a datagram: what passes through every Ethernet in one piece.
MOST: Final = 1432


class Lines:
    """The lines of one snapshot after the other."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def of(self, taken: Snapshot) -> list[str]:
        """The lines of a snapshot. A counter that has not grown has none."""
        before, self._before = self._before, dict(_counters(taken))
        grown = {key: value - before.get(key, 0) for key, value in self._before.items()}
        lines = [_line(key, value, "g") for key, value in _gauges(taken)]
        return lines + [_line(key, more, "c") for key, more in grown.items() if more > 0]


def packets(lines: Iterable[str]) -> Iterator[bytes]:
    """The lines in datagrams."""
    packet = b""
    for line in lines:
        text = line.encode()
        if packet and len(packet) + 1 + len(text) > MOST:
            yield packet
            packet = b""
        packet = packet + b"\n" + text if packet else text
    if packet:
        yield packet


def _gauges(taken: Snapshot) -> Iterator[tuple[str, float]]:
    """The value of each gauge, by its name and its tag."""
    for each in series.of(taken):
        if not each.is_counter:
            yield from _values(each)


def _counters(taken: Snapshot) -> Iterator[tuple[str, float]]:
    """The value of each counter, by its name and its tag."""
    for each in series.of(taken):
        if each.is_counter:
            yield from _values(each)
    delivered = taken.deliveries
    for phase in counts.PHASES:
        found = counts.phase(delivered, phase)
        yield f"tailrace.request_phase.count|#phase:{phase}", found.count
        yield f"tailrace.request_phase.milliseconds|#phase:{phase}", found.sum * 1000
    yield "tailrace.response_writes", counts.writes(delivered).sum


def _values(each: series.Series) -> Iterator[tuple[str, float]]:
    name = each.name.replace("tailrace_", "tailrace.", 1)
    for label, value in each.values.items():
        yield name + (f"|#{each.label}:{label}" if each.label else ""), value


def _line(key: str, value: float, kind: str) -> str:
    name, bar, tag = key.partition("|")
    return f"{name}:{round(value, 3):.15g}|{kind}{bar}{tag}"
