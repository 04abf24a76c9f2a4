"""Master and workers: the time of a restart, and the memory of each additional worker."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass

from tailrace_compare import load, machine
from tailrace_compare.launch import NotServing, Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.work import Work

EXTRA = 3
DEADLINE = 10.0


@dataclass(frozen=True)
class Processes(Scenario):
    """One worker with --preload, then additional ones by SIGTTIN, then a restart."""

    def load(self, server: Server, ask: Ask) -> Sample:
        before = used(server, ask)
        count = len(server.pids())
        for _ in range(EXTRA):
            server.signal_first(signal.SIGTTIN)
            count += 1
            await_processes(server, count)
        grown = used(server, ask) - before
        begun = time.perf_counter()
        server.signal_first(signal.SIGTERM)
        server.process.wait(DEADLINE)
        again = Server(server.peer, self.app, extra=self.extra(server.peer))
        try:
            again.wait_until_ready()
            restart = time.perf_counter() - begun
            super().check(again)
        finally:
            again.stop()
        return Sample({self.metrics[0].key: 1000 * restart, self.metrics[1].key: grown / EXTRA / (1 << 20)})

    def check(self, server: Server) -> None:
        if server.process.poll() is None:
            super().check(server)

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}  # SIGTTIN {EXTRA} times; SIGTERM, and the same command again"


def used(server: Server, ask: Ask) -> int:
    """Bytes of memory after every worker has had requests. Raises NotServing."""
    done = load.run(Work(server.url, 32, ask.seconds, machine.LOAD_CORE, close=True))
    if not done.rate:
        raise NotServing(f"no responses: {done.detail}")
    return server.memory()


def await_processes(server: Server, count: int) -> None:
    end = time.perf_counter() + DEADLINE
    while len(server.pids()) < count:
        if time.perf_counter() > end:
            raise subprocess.TimeoutExpired("SIGTTIN", DEADLINE)
        time.sleep(0.01)
