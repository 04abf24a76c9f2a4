"""Requests per second, the processor time of the server per request, and the latency.

The busier core limits the rate of large responses, and the server does not control alone how the kernel divides its
work on a connection between the two cores: whichever core processes an acknowledgement sends the data that waited for
it. So the processor time of the server is a separate figure, and the notes have that of the client.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace_compare import checks, load, machine, wrk
from tailrace_compare.checks import Expected, Wrong
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import files
from tailrace_compare.use import watched
from tailrace_compare.work import Work

UPLOAD = "upload.lua"


@dataclass(frozen=True)
class Rate(Scenario):
    """connections: the number of connections. close: a new connection for each request.
    same_core: client and server share a core; across cores, one connection measures how fast a sleeping core wakes.
    fields: additional header fields. script: of wrk, which makes the requests.

    The first metric is the rate. The suffix of a key determines the others: `_cost` is the server's processor time per
    response in microseconds, `_above` the same without what a call of the application costs by itself
    (`served.called`); `_p50` and `_p99` are percentiles of the latency in milliseconds.
    """

    connections: int = 64
    close: bool = False
    same_core: bool = False
    fields: tuple[str, ...] = ()
    script: str = ""

    def at_once(self) -> int:
        return self.connections

    def load(self, server: Server, ask: Ask) -> Sample:
        path = self.nginx if server.peer.package is None and self.nginx else self.path
        work = self.work(server.url + path, ask.seconds)
        with watched(server) as use:
            done = load.run(work)
        others = use.others / use.seconds if use.seconds and self.has_core() else None
        if done.rate <= 0:
            return Sample({}, done.errors, done.detail, others)
        unserved = done.unserved(work)
        spent = 1e6 * use.server / done.answers if done.answers else None
        found = {
            "_cost": spent,
            "_above": None if spent is None else self.above(server, spent),
            "_p50": None if unserved else done.p50,
            "_p99": None if unserved else done.p99,
        }
        values = {self.metrics[0].key: done.rate}
        notes = [note for note in (done.detail, unserved) if note]
        for metric in self.metrics[1:]:
            end = metric.key[metric.key.rindex("_") :]
            if (value := found[end]) is not None:
                values[metric.key] = value
            if end == "_cost":
                notes.append(client(done.processor, done.seconds, done.answers))
        return Sample(values, done.errors, ", ".join(notes), others)

    def above(self, server: Server, spent: float) -> float | None:
        """Microseconds that the server has spent on a response beyond the call of the application; None if it does not
        answer, which the check after the load reports."""
        if not any(metric.key.endswith("_above") for metric in self.metrics):
            return None
        try:
            return spent - float(checks.check(server.connect, Expected(f"/called?{self.path}")).body)
        except (OSError, Wrong, ValueError):
            return None

    def answers(self, server: Server) -> tuple[Expected, ...]:
        fields = (*self.fields, "Connection: close") if self.close else self.fields
        if server.peer.package is None:
            return (replace(self.of_nginx(), fields=fields),)
        if self.script == UPLOAD:
            fields = (*fields, "Content-Type: application/x-bytes")
            sent = b"x" * files.FORM_BYTES
            return (checks.of_application(self.app, self.path, method="POST", fields=fields, sent=sent),)
        return (checks.of_application(self.app, self.path, fields=fields),)

    def core(self) -> int | str:
        if self.all_cores:
            return ",".join(map(str, machine.CORES))
        return machine.SERVER_CORE if self.same_core else machine.LOAD_CORE

    def has_core(self) -> bool:
        """Whether the server has a core of its own, so that other processes on it disturb the measurement."""
        return not self.all_cores and self.core() != machine.SERVER_CORE

    def reproduce(self) -> str:
        line = load.command(self.work(f"http://127.0.0.1:8000{self.path}", 1))
        return shlex.join(line).replace(str(wrk.SCRIPTS), "tailrace_compare")

    def work(self, url: str, seconds: float) -> Work:
        return Work(url, self.connections, seconds, self.core(), self.close, self.fields, self.script)


@dataclass(frozen=True)
class Static(Rate):
    """A file served by the server itself, or by an application if the server has no options for that."""

    status: int = 200

    def answers(self, server: Server) -> tuple[Expected, ...]:
        if server.peer.package is None:
            file = self.of_nginx()
        elif self.extra(server.peer):
            file = Expected(self.path, body=(files.DIRECTORY / Path(self.path).name).read_bytes())
        else:
            return super().answers(server)
        if self.status == 304:
            file = replace(file, status=304, body=b"")
        return (replace(file, fields=self.fields),)


def client(processor: float, seconds: float, answers: int) -> str:
    """Whether the client used its whole core."""
    return f"client {100 * processor / seconds:.0f}% of its core, {1e6 * processor / answers:.0f} us per response"
