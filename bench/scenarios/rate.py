"""Requests each second, by wrk; and what one of them costs the server.

The rate of large responses is that of the busier core, and how the kernel shares its work on a connection between the
cores of server and client is not the server's choice alone: whoever takes in an acknowledgement sends what waited for
it. So the processor time of the server is a figure of its own there, and the notes have the client's.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import cast

from bench import files, machine, wrk
from bench.launch import Server
from bench.results import Sample
from bench.scenarios.scenario import Ask, Scenario
from bench.use import watched


@dataclass(frozen=True)
class Rate(Scenario):
    """connections: how many wrk keeps. close: each request on a connection of its own.
    same_core: client and server share a core; across cores one connection measures how fast a sleeping core wakes.
    content: the function of bench.files with the response's bytes, to compare once.

    A second metric, where there is one, is the server's processor time for a response in microseconds.
    """

    connections: int = 64
    close: bool = False
    same_core: bool = False
    content: str | None = None

    def measure(self, server: Server, ask: Ask) -> Sample:
        path = self.nginx if server.peer.package is None and self.nginx else self.path
        with watched(server) as use:
            load = wrk.run(server.url + path, self.connections, ask.seconds, self.core(), self.close)
        values = {self.metrics[0].key: load.rate} if load.rate > 0 else {}
        notes = [load.detail] if load.detail else []
        if len(self.metrics) > 1 and load.answers:
            values[self.metrics[1].key] = 1e6 * use.server / load.answers
            notes += [use.told(), client(load.processor, load.seconds, load.answers)]
        return Sample(values, load.errors, ", ".join(notes))

    def core(self) -> int:
        return machine.SERVER_CORE if self.same_core else machine.LOAD_CORE

    def expected(self) -> bytes | None:
        return cast(bytes, getattr(files, self.content)()) if self.content else None

    def reproduce(self) -> str:
        return shlex.join(
            wrk.command(f"http://127.0.0.1:8000{self.path}", self.connections, 1, self.core(), self.close)
        )


def client(processor: float, seconds: float, answers: int) -> str:
    """Whether the client was at the end of its core."""
    return f"client {100 * processor / seconds:.0f}% of its core, {1e6 * processor / answers:.0f} us a response"
