"""Ten times the capacity of the application: how much is still answered, and how soon the rest is refused."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_compare import flood, sleepers
from tailrace_compare.launch import HOST, Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import shapes

SECONDS = 4.0
MIB = 1 << 20


@dataclass(frozen=True)
class Overload(Scenario):
    """Goodput as a share of the capacity measured just before; 99th percentile of the refusals; memory growth. times:
    load as a multiple of the capacity of two threads."""

    times: float = 10

    def load(self, server: Server, ask: Ask) -> Sample:
        seconds = SECONDS / 2 if ask.quick else SECONDS
        # Two run and two wait: the threads are never without a request.
        capacity, counted = sleepers.run((HOST, server.port), 4, 0.5, seconds / 2)
        rate = self.times * 2 / shapes.NAP_SECONDS
        # What the first crowd makes the server keep is not growth.
        address = (HOST, server.port)
        flood.run(address, flood.steady(rate, 1.0))
        before = server.memory()
        found = flood.run(address, flood.steady(rate, seconds))
        grown = server.memory() - before
        values = {self.metrics[2].key: grown / MIB}
        if capacity:
            values[self.metrics[0].key] = 100 * found.count(200) / seconds / capacity
        slow = found.percentile(503, 0.99)
        if slow is not None:
            values[self.metrics[1].key] = 1000 * slow
        strange = sum(len(times) for status, times in found.times.items() if status not in (200, 503))
        errors = sum(counted.errors.values()) + sum(found.faults.values()) + strange
        kinds = {**counted.errors, **found.faults, **({"other responses": strange} if strange else {})}
        return Sample(values, errors, ", ".join(f"{count} {kind}" for kind, count in kinds.items()))

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}  # {self.times:g} x the capacity, tailrace_compare/flood.py"
