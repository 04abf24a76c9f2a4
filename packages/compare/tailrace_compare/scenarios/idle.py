"""Memory per idle connection, with 10,000 connections on which one request has been answered."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass

from tailrace_compare.answer import receive
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario

CONNECTIONS = 10_000
QUICK_CONNECTIONS = 2_000
OPENING_SECONDS = 15.0
# Source addresses of the loopback network share the connections, or one address could run out of ports.
EACH_ADDRESS = 2_000
# The server is given up after so many refusals one after the other, or when it has closed most of the first ones.
MAX_REFUSALS = 3
FIRST = 1_000


@dataclass(frozen=True)
class Idle(Scenario):
    """The growth of the processes' memory (in proportion where pages are shared) over the connections still open, and
    the memory of the server before them."""

    connections: int = CONNECTIONS

    def at_once(self) -> int:
        return self.connections

    def load(self, server: Server, ask: Ask) -> Sample:
        wanted = min(QUICK_CONNECTIONS, self.connections) if ask.quick else self.connections
        for _ in range(50):
            one_request(server, None).close()
        before = server.memory()
        connections: list[socket.socket] = []
        refused = 0
        end = time.perf_counter() + OPENING_SECONDS
        try:
            while len(connections) < wanted and refused < MAX_REFUSALS and time.perf_counter() < end:
                try:
                    connections.append(one_request(server, f"127.0.0.{2 + len(connections) // EACH_ADDRESS}"))
                    refused = 0
                except OSError:
                    refused += 1
                if len(connections) == FIRST and still_open(connections) < FIRST / 2:
                    break
            held = still_open(connections)
            grown = server.memory() - before
        finally:
            for connection in connections:
                connection.close()
        note = "" if held == wanted else f"{held:,} of {wanted:,} held"
        # Of a few connections the figure would be noise.
        values = {self.metrics[0].key: grown / held} if held > wanted / 20 else {}
        return Sample(values | {self.metrics[1].key: before / 2**20}, wanted - held, note)

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}  # /proc/PID/smaps_rollup before and after"


def one_request(server: Server, source: str | None) -> socket.socket:
    """A connection on which one request has been answered. Raises OSError."""
    connection = server.connect(1.0, source)
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        receive(connection)
    except OSError:
        connection.close()
        raise
    return connection


def still_open(connections: list[socket.socket]) -> int:
    """The connections that the server has not closed."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    return len(connections) - len(poll.poll(0))
