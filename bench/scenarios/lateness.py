"""How late blocks are at the client, whatever the rhythm in which they are made."""

from __future__ import annotations

from dataclasses import dataclass

from bench import rhythm
from bench.launch import Server
from bench.results import Sample, percentile
from bench.scenarios.scenario import Ask, Scenario

# In a round, whatever its seconds: their pauses alone are a second and more each.
RESPONSES = 3


@dataclass(frozen=True)
class Lateness(Scenario):
    """metrics: milliseconds from made to arrived, of the last blocks before a pause the worst and 99 %, of all blocks
    the same. A figure over several rounds is the median of the rounds' worst: the machine may not be ours alone.
    """

    def measure(self, server: Server, ask: Ask) -> Sample:
        last: list[int] = []
        every: list[int] = []
        pause = errors = 0
        notes = []
        for seed in range(1 if ask.quick else RESPONSES):
            request = f"GET /?{seed} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            try:
                with server.connect() as connection:
                    taken = rhythm.take(connection, request.encode())
                came = rhythm.arrivals(taken.pieces)
            except (OSError, ValueError) as error:
                errors += 1
                notes.append(str(error))
                continue
            if [block.size for block in came] != [size for burst in rhythm.bursts(seed) for size in burst.sizes]:
                errors += 1
                notes.append("other blocks than were made")
                continue
            every += [block.age for block in came]
            last += [block.age for block in came if block.last]
            pause = max(pause, taken.pause)
        if not every:
            return Sample({}, errors, ", ".join(notes))
        figures = (max(last), percentile(last, 0.99), max(every), percentile(every, 0.99))
        values = {metric.key: figure / 1e6 for metric, figure in zip(self.metrics, figures, strict=True)}
        notes.append(f"client's longest pause {pause / 1e6:.2f} ms, {len(every):,} blocks, {len(last)} before a pause")
        return Sample(values, errors, ", ".join(notes))

    def reproduce(self) -> str:
        return f"python -m bench --only {self.name}  # bench/rhythm.py"
