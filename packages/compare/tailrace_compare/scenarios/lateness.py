"""The delay of blocks at the client, for any rhythm of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace_compare import checks
from tailrace_compare.checks import Expected
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample, percentile
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import rhythm
from tailrace_compare.use import watched

# In a round, whatever its seconds: their pauses alone are a second and more each.
RESPONSES = 3


@dataclass(frozen=True)
class Lateness(Scenario):
    """metrics: delay in milliseconds, as maximum and 99th percentile, of the last blocks before a pause and of all
    blocks. A figure over several rounds is the median of the maxima, since other processes may use the machine.
    """

    def load(self, server: Server, ask: Ask) -> Sample:
        last: list[int] = []
        every: list[int] = []
        faults: list[str] = []
        pause = 0
        with watched(server) as use:
            for seed in range(1 if ask.quick else RESPONSES):
                try:
                    came, longest = response(server, seed)
                except (OSError, ValueError) as error:
                    faults.append(str(error))
                    continue
                every += [block.age for block in came]
                last += [block.age for block in came if block.last]
                pause = max(pause, longest)
        if not every:
            return Sample({}, len(faults), ", ".join(faults))
        figures = (max(last), percentile(last, 0.99), max(every), percentile(every, 0.99))
        values = {metric.key: figure / 1e6 for metric, figure in zip(self.metrics, figures, strict=True)}
        counts = f"{len(every):,} blocks, {len(last)} before a pause"
        notes = [*faults, f"client's longest pause {pause / 1e6:.2f} ms", use.told(), counts]
        return Sample(values, len(faults), ", ".join(notes))

    def answers(self, server: Server) -> tuple[Expected, ...]:
        # The bytes are checked block by block.
        return (replace(checks.of_application(self.app, "/?0", most=1), body=None),)

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}  # tailrace_compare/served/rhythm.py"


def response(server: Server, seed: int) -> tuple[list[rhythm.Arrival], int]:
    """The blocks of one response, and the client's longest pause meanwhile. Raises OSError or ValueError."""
    request = f"GET /?{seed} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with server.connect() as connection:
        taken = rhythm.take(connection, request.encode())
    came = rhythm.arrivals(taken.pieces)
    if [block.size for block in came] != [size for burst in rhythm.bursts(seed) for size in burst.sizes]:
        raise ValueError("other blocks than the application produced")
    return came, taken.pause
