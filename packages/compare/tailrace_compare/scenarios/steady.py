"""A file at constant request rates, as with httperf: a new connection for each request, and a timeout."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_compare import flood
from tailrace_compare.launch import HOST, Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.rate import Static
from tailrace_compare.scenarios.scenario import Ask

TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True)
class Steady(Static):
    """metrics: for each rate, the share of requests with a reply, and the 99th percentile of the replies in
    milliseconds. A reply is a 200 in time."""

    rates: tuple[int, ...] = (500, 1000, 2000, 4000)

    def load(self, server: Server, ask: Ask) -> Sample:
        (expected,) = self.answers(server)
        values: dict[str, float] = {}
        notes = []
        errors = 0
        for rate, (replies, slowest) in zip(self.rates, self.pairs(), strict=True):
            times = flood.steady(rate, ask.seconds)
            found = flood.run((HOST, server.port), times, expected.path, kept=False, patience=TIMEOUT_SECONDS)
            values[replies] = 100 * found.count(200) / len(times)
            slow = found.percentile(200, 0.99)
            if slow is not None:
                values[slowest] = 1000 * slow
            faults = dict(found.faults) | {f"of status {one}": found.count(one) for one in found.times if one != 200}
            said = [f"{count:,} {kind}" for kind, count in faults.items()]
            said.append(f"client late by {1000 * flood.quantile(found.late, 0.99):.1f} ms")
            notes.append(f"{rate:,}/s: {', '.join(said)}")
            errors += sum(faults.values())
        return Sample(values, errors, "; ".join(notes))

    def pairs(self) -> list[tuple[str, str]]:
        keys = [metric.key for metric in self.metrics]
        return list(zip(keys[::2], keys[1::2], strict=True))

    def reproduce(self) -> str:
        return (
            f"httperf --server 127.0.0.1 --port 8000 --uri {self.path} --rate {self.rates[0]}"
            f" --num-conns {self.rates[0]} --timeout {TIMEOUT_SECONDS:g}  # the same by tailrace_compare/flood.py"
        )
