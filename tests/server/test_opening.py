"""The opening of a response, its head and first blocks, is delayed while other requests wait: what clients receive.

Which requests the server finds together is a matter of chance, so a test repeats a round until it had what it is about.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from harness.greenlets import GEVENT
from harness.server import Server
from harness.wire import Broken, Client, Response
from server.probes import request, told

CLIENTS = 16
ROUNDS = 300
BODY = bytes(range(256)) * 16 * 25


class Gated:
    """A server, its clients, and the gate for which its generators wait."""

    def __init__(self, server: Server, clients: list[Client], gate: int) -> None:
        self.server = server
        self.clients = clients
        self._gate = gate

    def open_gate(self) -> None:
        os.write(self._gate, b"!")

    def ask(self, target: str, *fields: str, version: str = "1.1", method: str = "GET") -> Client:
        """Asks for a generator, while others ask for something else. Returns the client that has asked."""
        for client in self.clients[2:]:
            client.send(request("/pong"))
        self.clients[0].send(request(target, *fields, version=version).replace(b"GET", method.encode(), 1))
        self.clients[1].send(request("/pong"))
        return self.clients[0]

    def await_others(self) -> None:
        for client in self.clients[1:]:
            assert client.response().body == b"pong"

    def reconnect(self) -> None:
        self.clients[0].close()
        self.clients[0] = self.server.client()

    def deliveries(self) -> list[str]:
        """How the responses of generators were delivered."""
        return told(self.server, "/records")


@pytest.fixture
def gated(request: pytest.FixtureRequest) -> Iterator[Gated]:
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        arguments = getattr(request, "param", ())
        server = stack.enter_context(
            Server("srv_openings:app", *arguments, environment={"GATE": str(reading)}, pass_fds=[reading])
        )
        clients = [server.client(30) for _ in range(CLIENTS)]
        yield Gated(server, clients, writing)
        for client in clients:
            client.close()


@pytest.mark.skipif(GEVENT, reason="the opening of a greenlet's response is not delayed")
@pytest.mark.parametrize("target", ["/blocks", "/stated"])
def test_a_quick_generator_is_sent_as_a_whole_with_its_length(gated: Gated, target: str) -> None:
    for _ in range(ROUNDS):
        response = gated.ask(target).response()
        assert response.body == BODY
        gated.await_others()
        if response.all("Content-Length") and gated.deliveries()[-1] == "one-write":
            assert response["Content-Length"] == str(len(BODY))
            assert "Transfer-Encoding" not in response
            return
    pytest.fail("all generators were streamed")


@pytest.mark.nightly(gate=6)
@pytest.mark.parametrize("gated", [(), ("--threads", "1"), ("--debug",)], indirect=True)
@pytest.mark.parametrize("query", ["", "?write"])
@pytest.mark.parametrize("wait", ["compute", "sleep", "keep", "lock"])
def test_a_block_arrives_before_the_next_is_made_while_others_wait(gated: Gated, wait: str, query: str) -> None:
    for _ in range(ROUNDS // 10):
        one_by_one(gated, f"/{wait}{query}")


def one_by_one(gated: Gated, target: str) -> None:
    """The first block arrives before the second is made."""
    client = gated.ask(target)
    response = client.head()
    assert client.chunk(response) == b"first"
    gated.open_gate()
    assert client.chunk(response) == b"second"
    assert client.chunk(response) == b""
    gated.await_others()


@pytest.mark.skipif(GEVENT, reason="the opening of a greenlet's response is not delayed")
def test_a_delayed_block_arrives_before_the_next_is_made(gated: Gated) -> None:
    for _ in range(ROUNDS):
        one_by_one(gated, "/keep")
        if gated.deliveries()[-1] == "coalesced":
            return
    pytest.fail("no opening was delayed")


@pytest.mark.skipif(GEVENT, reason="the opening of a greenlet's response is not delayed")
@pytest.mark.parametrize("target", ["/fail", "/again"], ids=["raises", "start_response with exc_info"])
def test_a_generator_that_fails_before_its_opening_was_sent_is_answered_500(gated: Gated, target: str) -> None:
    # Repeated until the opening was delayed: the response is then a page, else it is broken off.
    for _ in range(ROUNDS):
        client = gated.ask(target)
        try:
            response = client.response()
        except Broken as broken:
            assert broken.response is not None
            assert broken.response.status == 200
            gated.reconnect()
        else:
            assert response.status == 500
            assert b"first" not in response.body
            assert gated.server.logged("exception in the application")
            return
        finally:
            gated.await_others()
    pytest.fail("no opening was delayed")


def test_what_is_not_chunked_is_delivered_as_before(gated: Gated) -> None:
    for _ in range(20):
        client = gated.ask("/blocks", method="HEAD")
        assert without_length(client.response("HEAD")).body == b""
        gated.await_others()
        client = gated.ask("/blocks", version="1.0")
        assert without_length(client.response(version="1.0")).body == BODY
        gated.await_others()
        gated.reconnect()
        client = gated.ask("/blocks", "Connection: close")
        response = client.response()
        assert response.body == BODY
        assert response.connection == {"close"}
        client.at_end()
        gated.await_others()
        gated.reconnect()


def without_length(response: Response) -> Response:
    assert "Content-Length" not in response
    return response


def test_a_client_that_leaves_before_its_response_disturbs_no_other(gated: Gated) -> None:
    for _ in range(50):
        gated.ask("/blocks")
        gated.reconnect()
        gated.await_others()
    assert gated.ask("/blocks").response().body == BODY
    gated.await_others()
