"""Complete responses that are held while further requests wait, as the application and its clients see it.

Which requests the server finds together is a matter of chance, so a test repeats a round until it had what it is about.
"""

from __future__ import annotations

import contextlib
import threading
import time

from harness.wire import Client
from server.probes import eventually

CLIENTS = 16


def busy(asked):
    """An application that computes for 0.4 ms, and keeps how each of its responses can be asked for."""

    def app(environ, start_response):
        asked.append(environ["tailrace.delivery"])
        until = time.perf_counter() + 0.0004
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


def test_each_block_is_sent_before_the_next_is_made_while_other_responses_are_held(serve) -> None:
    asked, taken = [], threading.Semaphore(0)
    pong = busy(asked)

    def blocks():
        for number in range(3):
            yield b"block %d" % number
            # It computes: while an application waits, nothing is held.
            until = time.monotonic() + 10
            while not taken.acquire(blocking=False):
                assert time.monotonic() < until

    def app(environ, start_response):
        if environ["PATH_INFO"] != "/blocks":
            return pong(environ, start_response)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return blocks()

    address = serve(app)
    with connected(address) as clients, Client(address) as generator:
        for turn in range(200):
            for client in clients[: CLIENTS // 2]:
                client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            generator.send(b"GET /blocks HTTP/1.1\r\nHost: a\r\n\r\n")
            for client in clients[CLIENTS // 2 :]:
                client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            response = generator.head()
            for number in range(3):
                assert generator.chunk(response) == b"block %d" % number
                taken.release()
            assert generator.chunk(response) == b""
            for client in clients:
                assert client.response().body == b"pong"
            if turn >= 10 and any(held(asked)):
                break
        assert any(held(asked))
