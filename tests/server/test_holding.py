"""Complete responses that are held while further requests wait, as the application and its clients see it.

Which requests the server finds together is a matter of chance, so a test repeats a round until it had what it is about.
"""

from __future__ import annotations

import contextlib
import time

from harness.wire import Client
from server.probes import eventually

CLIENTS = 8


def busy(asked):
    """An application that computes for 0.2 ms, and keeps how each of its responses can be asked for."""

    def app(environ, start_response):
        asked.append(environ["tailrace.delivery"])
        until = time.perf_counter() + 0.0002
        while time.perf_counter() < until:
            pass
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
        return [b"pong"]

    return app


def play_round(clients, method="GET"):
    """All send before any of them reads."""
    for client in clients:
        client.send(f"{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
    for client in clients:
        assert client.response().body == b"pong"


@contextlib.contextmanager
def connected(address):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Client(address)) for _ in range(CLIENTS)]


def held(asked):
    """For how many milliseconds each response was held."""
    eventually(lambda: all(each()["drained_ms"] is not None for each in asked), "the end of all responses")
    return [each()["held_ms"] for each in asked]


def test_what_is_held_is_delivered_and_recorded(serve) -> None:
    asked = []
    with connected(serve(busy(asked))) as clients:
        for _ in range(200):
            play_round(clients)
            if any(held(asked)):
                break
        assert any(held(asked))
        before = len(asked)
        for _ in range(20):
            play_round(clients, "POST")
        assert not any(held(asked[before:]))


def test_nothing_is_held_when_that_is_off(serve) -> None:
    asked = []
    with connected(serve(busy(asked), hold_writes=0)) as clients:
        for _ in range(50):
            play_round(clients)
        assert not any(held(asked))
