"""`/metrics`: a snapshot in the text format of Prometheus, version 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats/).

Order of labels and notation of numbers are those of the official Python client; a test compares the bytes. There is no
label for a single worker: its series would end whenever it is replaced. `/status.json` has each worker.

Thread: any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tailrace.status import counts, series
from tailrace.status.memory import Memory
from tailrace.status.snapshot import Snapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PHASES: Final = "Time taken by requests to the application, by phase."


@dataclass(frozen=True)
class _Family:
    """A metric with its samples: what follows its name, the labels, the value."""

    name: str
    kind: str
    said: str
    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, suffix: str = "", **labels: str) -> _Family:
        self.samples.append((suffix, labels, value))
        return self

    def add_histogram(self, found: counts.Histogram, **labels: str) -> None:
        for bound, count in found.buckets.items():
            self.add(count, "_bucket", **labels, le=bound)
        self.add(found.count, "_count", **labels)
        self.add(found.sum, "_sum", **labels)

    def text(self) -> str:
        lines = [f"# HELP {self.name} {_help(self.said)}\n# TYPE {self.name} {self.kind}\n"]
        lines += [f"{self.name}{suffix}{_labels(labels)} {_number(value)}\n" for suffix, labels, value in self.samples]
        return "".join(lines)


def exposition(taken: Snapshot, memory: Mapping[int, Memory], version: str) -> bytes:
    """The metrics as text. A character of the application's name that UTF-8 does not have is a question mark."""
    return "".join(each.text() for each in _families(taken, memory, version)).encode(errors="replace")


def _families(taken: Snapshot, memory: Mapping[int, Memory], version: str) -> Iterator[_Family]:
    yield _Family("tailrace_info", "gauge", "Version of the server.").add(
        1, version=version, application=taken.state.application
    )
    for each in series.of(taken):
        name, kind = (f"{each.name}_total", "counter") if each.is_counter else (each.name, "gauge")
        family = _Family(name, kind, each.said)
        for label, value in each.values.items():
            family.add(value, **({each.label: label} if each.label else {}))
        yield family
    writes = _Family("tailrace_response_writes", "histogram", "Write system calls per response.")
    writes.add_histogram(counts.writes(taken.deliveries))
    yield writes
    phases = _Family("tailrace_request_phase_seconds", "histogram", _PHASES)
    for phase in counts.PHASES:
        phases.add_histogram(counts.coarse(counts.phase(taken.deliveries, phase)), phase=phase)
    yield phases
    yield from _memory_of_workers(memory)


def _memory_of_workers(memory: Mapping[int, Memory]) -> Iterator[_Family]:
    resident = [each.rss for each in memory.values() if each.rss is not None]
    shared = [each.pss for each in memory.values() if each.pss is not None]
    yield _Family(
        "tailrace_workers_resident_memory_bytes",
        "gauge",
        "Total resident memory of the workers; a shared page counts once per worker.",
    ).add(sum(resident))
    if len(shared) == len(memory):
        yield _Family(
            "tailrace_workers_proportional_memory_bytes",
            "gauge",
            "Memory of the workers; a shared page counts once.",
        ).add(sum(shared))


def _help(said: str) -> str:
    return said.replace("\\", r"\\").replace("\n", r"\n")


def _value(text: str) -> str:
    return _help(text).replace('"', r"\"")


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_value(value)}"' for name, value in sorted(labels.items())) + "}"


def _number(value: float) -> str:
    """A finite number as Go writes it: with an exponent from 10^6 on."""
    written = repr(float(value))
    point = written.find(".")
    if value > 0 and point > 6:
        mantissa = f"{written[0]}.{written[1:point]}{written[point + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{point - 1:02d}"
    return written
