"""Idle streams with one block per second: the delay of each block, and the cost of a stream."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailrace_compare import checks, streams
from tailrace_compare.checks import Expected
from tailrace_compare.client import started
from tailrace_compare.launch import HOST, Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.idle import one_request
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.use import watched

PATH = "/events"
QUICK_CLIENTS = 2_000
# Times the seconds of a round.
WINDOW = 10
QUICK_WINDOW = 3


@dataclass(frozen=True)
class Streaming(Scenario):
    """metrics: delay of the blocks in milliseconds, maximum and 99th percentile; the share of streams open at the end;
    blocks that did not arrive, or so long after the previous one that they must have been made late; KiB of the
    server's memory per stream (shared pages in proportion).
    """

    clients: int = 10_000

    def at_once(self) -> int:
        return self.clients

    def load(self, server: Server, ask: Ask) -> Sample:
        clients = min(QUICK_CLIENTS, self.clients) if ask.quick else self.clients
        seconds = (QUICK_WINDOW if ask.quick else WINDOW) * ask.seconds
        for _ in range(50):
            one_request(server, None).close()
        before = server.memory()
        arguments = [HOST, str(server.port), PATH, str(clients), str(seconds)]
        with started("tailrace_compare.streams", arguments, streams.RAMP_SECONDS + 10) as client:
            # Before the window: reading it holds up the server.
            grown = server.memory() - before
            with watched(server) as use:
                seen = streams.Seen(**json.loads(client.ask(seconds + 10)))
        worst, p99, opened, missed, memory = (metric.key for metric in self.metrics)
        values = {opened: 100 * seen.open / clients, missed: float(seen.missed)}
        if seen.blocks:
            values |= {worst: seen.worst, p99: seen.p99}
        if seen.open:
            values[memory] = grown / seen.open / 1024
        notes = [
            f"client's longest pause {seen.pause:.1f} ms",
            f"client {100 * seen.processor:.0f}% of its core, {use.told()}",
            f"{seen.open:,} of {clients:,} open, {seen.blocks:,} blocks, {seen.missed:,} missed",
            *(f"{count:,} {kind}" for kind, count in seen.faults.items()),
        ]
        return Sample(values, clients - seen.open + seen.missed, ", ".join(notes))

    def answers(self, server: Server) -> tuple[Expected, ...]:
        # The first event and its number; a stamp follows.
        return (checks.of_application(self.app, PATH, most=len("data: 0 ")),)

    def reproduce(self) -> str:
        return f"python -m tailrace_compare.streams {HOST} 8000 {PATH} {self.clients} {WINDOW}"
