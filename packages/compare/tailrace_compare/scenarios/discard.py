"""Large responses per second to a client that is faster than any server, because its kernel discards the bodies."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_compare import drain
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.rate import client
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.use import watched


@dataclass(frozen=True)
class Discard(Scenario):
    """As Rate, with the client of tailrace_compare.drain instead of wrk. The notes state which core was saturated."""

    connections: int = 4

    def at_once(self) -> int:
        return self.connections

    def load(self, server: Server, ask: Ask) -> Sample:
        with watched(server) as use:
            found = drain.run(server.connect, self.path, self.connections, ask.seconds)
        if not found.answers:
            return Sample({}, found.errors, "no complete response")
        rate, cost = (metric.key for metric in self.metrics)
        values = {rate: found.answers / found.seconds, cost: 1e6 * use.server / found.answers}
        note = f"{use.told()}, {client(found.processor, found.seconds, found.answers)}"
        return Sample(values, found.errors, note)

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}  # {self.connections} connections, tailrace_compare/drain.py"
