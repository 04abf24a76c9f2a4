"""Start-up: from the start of the command to the first response."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario


@dataclass(frozen=True)
class Startup(Scenario):
    """The server's start is the measurement."""

    def load(self, server: Server, ask: Ask) -> Sample:
        return Sample({self.metrics[0].key: 1000 * server.ready_after} if server.ready_after is not None else {})

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}"
