"""`/metrics`: a snapshot in the text format of Prometheus, version 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats/).

Order of labels and notation of numbers are those of the official Python client; a test compares the bytes. There is no
label for a single worker: its series would end whenever it is replaced. `/status.json` has each worker.

Thread: any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from tailrace import metrics
from tailrace._tailrace import Scoreboard, SharedNumbers, Traces
from tailrace.status import series
from tailrace.status.counts import Histogram
from tailrace.status.memory import Memory
from tailrace.status.snapshot import Snapshot
from tailrace.status.table import COUNTER, EXPIRY, INFO, PROPORTIONAL, REFUSED, RESIDENT, TRACES, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class _Family:
    """A metric with its samples: what follows its name, the labels, the value."""

    metric: Metric
    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float | Histogram, **labels: str) -> _Family:
        if isinstance(value, Histogram):
            buckets = value.buckets.items()
            self.samples.extend(("_bucket", {**labels, "le": bound}, count) for bound, count in buckets)
            self.samples.extend((("_count", labels, value.count), ("_sum", labels, value.sum)))
        else:
            self.samples.append(("", labels, value))
        return self

    def text(self) -> str:
        name, said = self.metric.family, _help(self.metric.help)
        lines = [f"# HELP {name} {said}\n# TYPE {name} {self.metric.kind}\n"]
        lines += [f"{name}{suffix}{_labels(labels)} {_number(value)}\n" for suffix, labels, value in self.samples]
        return "".join(lines)


def exposition(
    taken: Snapshot, memory: Mapping[int, Memory], version: str, board: Scoreboard, held: Mapping[str, Any] | None
) -> bytes:
    """The metrics as text. A character of the application's name that UTF-8 does not have is a question mark.

    board: has the metrics of the application, and the traces. held: as `held.Reader` reads it."""
    families = chain(
        _families(taken, memory, version, held), _of_application(taken, board.numbers), [_of_traces(board.traces)]
    )
    return "".join(each.text() for each in families).encode(errors="replace")


def _of_application(taken: Snapshot, numbers: SharedNumbers) -> Iterator[_Family]:
    workers = [each.pid for each in taken.workers]
    for name, (kind, said, samples) in metrics.read(numbers, workers).items():
        family = _Family(Metric("application", "", kind, "", "", name, said))
        # What a counter's name ends with is a part of the name of its family.
        found = [("" if kind == COUNTER else each.suffix, each.labels, each.value) for each in samples]
        family.samples.extend(found)
        yield family
    yield _Family(REFUSED).add(numbers.refused())


def _of_traces(traces: Traces) -> _Family:
    family = _Family(TRACES)
    for result, count in zip(("exported", "failed", "dropped"), traces.counts(), strict=True):
        family.add(count, result=result)
    return family


def _families(
    taken: Snapshot, memory: Mapping[int, Memory], version: str, held: Mapping[str, Any] | None
) -> Iterator[_Family]:
    yield _Family(INFO).add(1, version=version, application=taken.state.application)
    for metric, values in chain(series.of(taken), series.of_holder(held) if held else ()):
        family = _Family(metric)
        for label, value in values.items():
            family.add(value, **({metric.label: label} if metric.label else {}))
        yield family
    resident = [each.rss for each in memory.values() if each.rss is not None]
    yield _Family(RESIDENT).add(sum(resident))
    shared = [each.pss for each in memory.values() if each.pss is not None]
    if len(shared) == len(memory):
        yield _Family(PROPORTIONAL).add(sum(shared))
    if taken.state.certificates:
        family = _Family(EXPIRY)
        for file, expires in taken.state.certificates:
            family.add(expires, file=file)
        yield family


def _help(said: str) -> str:
    return said.replace("\\", r"\\").replace("\n", r"\n")


def _value(text: str) -> str:
    return _help(text).replace('"', r"\"")


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_value(value)}"' for name, value in sorted(labels.items())) + "}"


def _number(value: float) -> str:
    """A number as Go writes it: with an exponent from 10^6 on."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
    written = repr(float(value))
    point = written.find(".")
    if value > 0 and point > 6:
        mantissa = f"{written[0]}.{written[1:point]}{written[point + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{point - 1:02d}"
    return written
