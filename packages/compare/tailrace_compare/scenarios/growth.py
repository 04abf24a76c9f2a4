"""Thread growth: the time until 100 sleeping requests are all in flight, measured by the application."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from tailrace_compare import checks, curl
from tailrace_compare.checks import Expected
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import shapes

CLIENTS = 100


@dataclass(frozen=True)
class Growth(Scenario):
    """All connections are open before the first request is sent. If a server never has all requests in flight, it has
    no figure, and the note states how many it had."""

    def load(self, server: Server, ask: Ask) -> Sample:
        connections = [server.connect(timeout=4 * shapes.GROWTH_SECONDS) for _ in range(CLIENTS)]
        unanswered = 0
        try:
            for connection in connections:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            # For all together: a server with few threads would answer one after the other for minutes.
            until = time.monotonic() + 4 * shapes.GROWTH_SECONDS
            for connection in connections:
                connection.settimeout(max(0.01, until - time.monotonic()))
                try:
                    unanswered += connection.recv(12)[9:12] != b"200"
                except OSError:
                    unanswered += 1
        finally:
            for connection in connections:
                connection.close()
        try:
            told = json.loads(curl.body(server.url + "/growth"))
        except ValueError:
            return Sample({}, unanswered or 1, "no response afterwards")
        if told["most"] < CLIENTS:
            return Sample({}, unanswered, f"{told['most']} of {CLIENTS} in flight")
        return Sample({self.metrics[0].key: told["ms"]}, unanswered)

    def answers(self, server: Server) -> tuple[Expected, ...]:
        # The first of the measured requests begins the count.
        return (checks.of_application(self.app, "/ready"),)

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}"
