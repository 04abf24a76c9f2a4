"""Requests each second, by wrk; what one of them costs the server, and how long the client waits for it.

The rate of large responses is that of the busier core, and how the kernel shares its work on a connection between the
cores of server and client is not the server's choice alone: whoever takes in an acknowledgement sends what waited for
it. So the processor time of the server is a figure of its own there, and the notes have the client's.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import cast

from tailrace.compare import machine, wrk
from tailrace.compare.launch import Server
from tailrace.compare.results import Sample
from tailrace.compare.scenarios.scenario import Ask, Scenario
from tailrace.compare.served import files
from tailrace.compare.use import watched


@dataclass(frozen=True)
class Rate(Scenario):
    """connections: how many wrk keeps. close: each request on a connection of its own.
    same_core: client and server share a core; across cores one connection measures how fast a sleeping core wakes.
    content: the function of served.files with the response's bytes, to compare once. fields: further ones of a request.

    The first metric is the rate. Others are told by the ends of their keys: `_cost` is the server's processor time for
    a response in microseconds, `_p50` and `_p99` are what half and 99 % of the responses took at most, in milliseconds.
    """

    connections: int = 64
    close: bool = False
    same_core: bool = False
    content: str | None = None
    fields: tuple[str, ...] = ()

    def measure(self, server: Server, ask: Ask) -> Sample:
        path = self.nginx if server.peer.package is None and self.nginx else self.path
        with watched(server) as use:
            load = wrk.run(server.url + path, self.connections, ask.seconds, self.core(), self.close, self.fields)
        if self.close and not server.closes():
            # Then its clients had no new connections, and its figure is not one of them.
            return Sample({}, load.errors + 1, "ignores Connection: close and keeps the connection")
        others = use.others / use.seconds if use.seconds else None
        if load.rate <= 0:
            return Sample({}, load.errors, load.detail, others)
        found = {
            "_cost": 1e6 * use.server / load.answers if load.answers else None,
            "_p50": load.p50,
            "_p99": load.p99,
        }
        values = {self.metrics[0].key: load.rate}
        notes = [load.detail] if load.detail else []
        for metric in self.metrics[1:]:
            end = metric.key[metric.key.rindex("_") :]
            if (value := found[end]) is not None:
                values[metric.key] = value
            if end == "_cost":
                notes.append(client(load.processor, load.seconds, load.answers))
        return Sample(values, load.errors, ", ".join(notes), others)

    def core(self) -> int:
        return machine.SERVER_CORE if self.same_core else machine.LOAD_CORE

    def expected(self) -> bytes | None:
        return cast(bytes, getattr(files, self.content)()) if self.content else None

    def reproduce(self) -> str:
        return shlex.join(
            wrk.command(f"http://127.0.0.1:8000{self.path}", self.connections, 1, self.core(), self.close, self.fields)
        )


def client(processor: float, seconds: float, answers: int) -> str:
    """Whether the client was at the end of its core."""
    return f"client {100 * processor / seconds:.0f}% of its core, {1e6 * processor / answers:.0f} us a response"
