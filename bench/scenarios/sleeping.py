"""An application that sleeps: what share of clients / sleep a server lets through."""

from __future__ import annotations

from dataclasses import dataclass

from bench import apps, sleepers
from bench.launch import HOST, Server
from bench.results import Sample
from bench.scenarios.scenario import Ask, Scenario

WARM_SECONDS = 0.8
WINDOW_SECONDS = 2.0


@dataclass(frozen=True)
class Sleeping(Scenario):
    """clients: each asks again as soon as it is answered."""

    clients: int = 100

    def measure(self, server: Server, ask: Ask) -> Sample:
        window = WINDOW_SECONDS / 2 if ask.quick else WINDOW_SECONDS
        rate, counted = sleepers.run((HOST, server.port), self.clients, WARM_SECONDS, window)
        share = 100 * rate / (self.clients / apps.SLEEP_SECONDS)
        note = ", ".join(f"{count} {kind}" for kind, count in counted.errors.items())
        return Sample({self.metrics[0].key: share}, sum(counted.errors.values()), note)

    def reproduce(self) -> str:
        return f"python -m bench --only {self.name}  # {self.clients} clients, bench/sleepers.py"
