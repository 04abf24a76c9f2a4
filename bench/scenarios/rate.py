"""Requests each second, by wrk."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import cast

from bench import files, machine, wrk
from bench.launch import Server
from bench.results import Sample
from bench.scenarios.scenario import Ask, Scenario


@dataclass(frozen=True)
class Rate(Scenario):
    """connections: how many wrk keeps. close: each request on a connection of its own.
    same_core: client and server share a core; across cores one connection measures how fast a sleeping core wakes.
    content: the function of bench.files with the response's bytes, to compare once.
    """

    connections: int = 64
    close: bool = False
    same_core: bool = False
    content: str | None = None

    def measure(self, server: Server, ask: Ask) -> Sample:
        path = self.nginx if server.peer.package is None and self.nginx else self.path
        load = wrk.run(server.url + path, self.connections, ask.seconds, self.core(), self.close)
        values = {self.metrics[0].key: load.rate} if load.rate > 0 else {}
        return Sample(values, load.errors, load.detail)

    def core(self) -> int:
        return machine.SERVER_CORE if self.same_core else machine.LOAD_CORE

    def expected(self) -> bytes | None:
        return cast(bytes, getattr(files, self.content)()) if self.content else None

    def reproduce(self) -> str:
        return shlex.join(
            wrk.command(f"http://127.0.0.1:8000{self.path}", self.connections, 1, self.core(), self.close)
        )
