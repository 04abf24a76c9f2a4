"""System calls of a response, counted by strace while one client repeats a request on one connection."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tailrace_compare import strace
from tailrace_compare.answer import receive
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario

# strace slows some servers a hundredfold.
MAX_SECONDS = 12.0


@dataclass(frozen=True)
class Syscalls(Scenario):
    """requests: the number over which the calls of an idle server are averaged."""

    requests: int = 2_000

    def load(self, server: Server, ask: Ask) -> Sample:
        wanted = max(1, self.requests // 4) if ask.quick else self.requests
        # One before, so that what a first request costs is not counted.
        answer_all(server, 1)
        counting = strace.Count(server.pids(), server.state / "strace")
        with counting:
            answered = answer_all(server, wanted)
        total = sum(counting.calls.values())
        note = ", ".join(f"{name} {count / answered:.2f}" for name, count in list(counting.calls.items())[:5])
        return Sample({self.metrics[0].key: total / answered} if total else {}, 0 if total else 1, note)

    def reproduce(self) -> str:
        return f"strace -c -f -p PID, {self.requests:,} requests on one connection"


def answer_all(server: Server, requests: int) -> int:
    """Sends one request after another, on a new connection if the server closes. Returns the number of requests in the
    available time, at least one. Raises OSError."""
    end = time.perf_counter() + MAX_SECONDS
    connection = server.connect(MAX_SECONDS)
    try:
        answered = 0
        while answered < requests:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = receive(connection)
            answered += 1
            if time.perf_counter() > end:
                break
            if answer.closes:
                connection.close()
                connection = server.connect(MAX_SECONDS)
    finally:
        connection.close()
    return answered
