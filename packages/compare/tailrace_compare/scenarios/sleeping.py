"""An application that sleeps: the share of clients / sleep that a server reaches."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tailrace_compare import flood, sleepers
from tailrace_compare.launch import HOST, Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import shapes

WARM_SECONDS = 0.8
WINDOW_SECONDS = 2.0
PARTS = (0.5, 0.99)
# From so many on the client's own use of its core is told.
MANY = 1000


@dataclass(frozen=True)
class Sleeping(Scenario):
    """clients: each sends the next request as soon as it has a response.

    metrics: the share of the maximum rate for these clients, the share of successful requests, and the median and 99th
    percentile of the response times in milliseconds.
    """

    clients: int = 100

    def at_once(self) -> int:
        return self.clients

    def load(self, server: Server, ask: Ask) -> Sample:
        window = WINDOW_SECONDS / 2 if ask.quick else WINDOW_SECONDS
        begun, used = time.perf_counter(), time.process_time()
        rate, counted = sleepers.run((HOST, server.port), self.clients, WARM_SECONDS, window)
        client = (time.process_time() - used) / (time.perf_counter() - begun)
        share = 100 * rate / (self.clients / shapes.SLEEP_SECONDS)
        notes = [f"{count} {kind}" for kind, count in counted.errors.items()]
        if self.clients >= MANY:
            notes.append(f"client {100 * client:.0f}% of its core")
        values = {self.metrics[0].key: share}
        # Without the clients that came while the others were already served.
        times = counted.times(begun + self.clients / sleepers.RAMP + WARM_SECONDS)
        figures = [100 * counted.success(), *(1000 * flood.quantile(times, part) for part in PARTS if times)]
        values |= {metric.key: figure for metric, figure in zip(self.metrics[1:], figures, strict=False)}
        return Sample(values, sum(counted.errors.values()), ", ".join(notes))

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}  # {self.clients} clients, tailrace_compare/sleepers.py"
