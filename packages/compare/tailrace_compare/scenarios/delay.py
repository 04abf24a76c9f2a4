"""Whether a block reaches the client while the application waits after it, and how soon."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass, replace

from tailrace_compare import checks
from tailrace_compare.checks import Expected
from tailrace_compare.launch import HOST, Server
from tailrace_compare.results import Sample, percentile
from tailrace_compare.scenarios.scenario import Ask, Scenario

BLOCK = re.compile(rb"block (\d+) (\d+) (\d+) (\d+)\n")


@dataclass(frozen=True)
class Delay(Scenario):
    """After each block, the application waits until the client confirms it, up to `patience` seconds.

    metrics: the share of blocks that arrive during the wait; median and 99th percentile of the delay in milliseconds.
    """

    blocks: int = 20
    patience: float = 0.25

    def load(self, server: Server, ask: Ask) -> Sample:
        path = f"/?{self.blocks},{self.patience:g}"
        with server.connect() as connection, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as word:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
            there, ages = self.take(connection, word)
        if len(ages) <= self.blocks:
            return Sample({}, 1, f"{len(ages)} of {self.blocks + 1} blocks arrived")
        had, half, most = (metric.key for metric in self.metrics)
        values = {had: 100 * there / self.blocks, half: percentile(ages, 0.5) / 1e6, most: percentile(ages, 0.99) / 1e6}
        held = self.blocks - there
        note = f"{held} of {self.blocks} blocks held back while the application waited" if held else ""
        return Sample(values, int(held > 0), note)

    def take(self, connection: socket.socket, word: socket.socket) -> tuple[int, list[int]]:
        """The number of blocks that arrived in time, as stated in the last block, and the delays in nanoseconds. Raises
        OSError."""
        connection.setblocking(False)
        received = bytearray()
        there, ages = 0, list[int]()
        end = time.perf_counter() + 5 + 2 * self.blocks * self.patience
        # It never sleeps: a machine's time to wake a core is no server's.
        while time.perf_counter() < end and len(ages) <= self.blocks:
            try:
                data = connection.recv(1 << 16)
            except BlockingIOError:
                continue
            now = time.perf_counter_ns()
            if not data:
                break
            received += data
            for found in list(BLOCK.finditer(received))[len(ages) :]:
                number, port, made, there = map(int, found.groups())
                ages.append(now - made)
                if port:
                    word.sendto(b"%d" % number, (HOST, port))
        return there, ages

    def answers(self, server: Server) -> tuple[Expected, ...]:
        # The blocks are counted and have stamps.
        return (replace(checks.of_application(self.app, "/?0,0"), body=None),)

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}  # tailrace_compare/scenarios/delay.py"
