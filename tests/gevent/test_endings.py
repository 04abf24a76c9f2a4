"""Greenlets that end while they wait in the server: for room in the queue of their response, or for their body."""

import itertools
import json
import signal
import socket
import struct
from contextlib import ExitStack

import pytest
from harness.greenlets import dumped, in_requests, on_greenlets, record
from harness.server import shared
from harness.uploads import head
from harness.wire import Broken
from server.probes import eventually, reading

PLACES = ["iteration", "write", "input"]
CAUSES = ["timeout", "kill", "reset", "deadline"]
# What leaves the application's own code, where it is on the stack; a generator is not, it is closed.
RAISED = {
    "timeout": "Timeout",
    "kill": "GreenletExit",
    "reset": "ClientDisconnectedError",
    "deadline": "RequestTimeout",
}

numbers = itertools.count()
server = shared(
    on_greenlets, "srv_greenlets:app", "--stream-body", client_memory="16MiB", response_spill=0, query_masking="none"
)


def waiting(server, stack, place, key, more=""):
    """A client whose request waits at that place."""
    query = f"?key={key}&victim_of={key}{more}"
    if place == "input":
        client = stack.enter_context(server.client(30))
        client.send(head(target=f"/consume{query}", length=1000) + b"some bytes")
        if not more:
            eventually(lambda: record(server, key)["read"] == 10, "what was sent is read")
        return client
    client = stack.enter_context(reading(server, f"/produce{query}&by={place}"))
    client.head()
    if not more:
        made = iter(lambda: record(server, key)["made"], None)
        eventually(lambda: 1 < next(made) == next(made), "the producer waits")
    return client


def reset(client):
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("place", PLACES)
def test_what_ends_a_waiting_greenlet_ends_its_request_alone(server, place, cause):
    # Fails when the response or the body is left taken, when close() is called twice or never, when a greenlet stays
    # behind, or when the waking of one that is gone reaches somebody else.
    key = f"{place}-{cause}-{next(numbers)}"
    with ExitStack() as stack:
        other = waiting(server, stack, place, f"other-{key}")
        client = waiting(
            server, stack, place, key, {"timeout": "&timeout=0.5", "deadline": "&deadline=0.5"}.get(cause, "")
        )
        if cause == "kill":
            server.get(f"/kill?victim={key}")
        if cause == "reset":
            reset(client)
        ended = eventually(lambda: record(server, key)["ended"], "the end of the request")
        if (place, cause) == ("write", "deadline"):
            # As with threads, either the end of the response or the exception may come first.
            assert ended in ("ClientDisconnectedError", "RequestTimeout")
        else:
            assert ended == ("GeneratorExit" if place == "iteration" else RAISED[cause])
        if place == "input" and cause != "reset":
            assert client.response().status == (504 if cause == "deadline" else 500)
        elif cause != "reset":
            # Without the rest of it, for it was cut off.
            assert len(client.rest()) < 60 << 20
        if place == "iteration":
            assert eventually(lambda: record(server, key)["closed"], "close()") == 1
        # Its neighbour waits as before.
        assert in_requests(server) == 1
        assert record(server, f"other-{key}")["ended"] is None
        if place == "input":
            assert json.loads(other.ask(bytes(990)).body) == 1000
        else:
            reset(other)
    eventually(lambda: in_requests(server) == 0, "no greenlet is left")
    assert record(server, key)["closed"] == (1 if place == "iteration" else 0)
    assert f"key={key}&" not in dumped(server)
    assert "was lost" not in server.log


def test_hundreds_that_vanish_while_they_wait_leave_nothing(server):
    # Fails when the greenlet of a client that has disconnected waits without end.
    with ExitStack() as stack:
        for number in range(60):
            place = PLACES[number % 3]
            client = waiting(server, stack, place, f"vanishing-{number}", "&deadline=none")
            if number % 2:
                reset(client)
    eventually(lambda: in_requests(server) == 0, "no greenlet is left")
    assert "was lost" not in server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_waiting_greenlets_do_not_keep_a_server_that_is_told_to_end(number):
    # Fails when the end of the time does not wake who waits: the process would stay, or die by its master.
    with on_greenlets("srv_greenlets:app", "--stream-body", graceful_timeout=0.3) as server, ExitStack() as stack:
        clients = [waiting(server, stack, place, place) for place in PLACES]
        server.send_signal(number)
        for client in clients:
            client.rest()
        server.wait()
        assert "killed" not in server.log
        assert "was lost" not in server.log


def test_waiting_greenlets_finish_in_a_graceful_end():
    with on_greenlets("srv_greenlets:app", "--stream-body") as server, ExitStack() as stack:
        upload = waiting(server, stack, "input", "upload")
        download = stack.enter_context(reading(server, "/produce?key=download&size=8000000"))
        answer = download.head()
        server.send_signal(signal.SIGTERM)
        assert server.logged("SIGTERM")
        assert json.loads(upload.ask(bytes(990)).body) == 1000
        size = 0
        while piece := download.chunk(answer):
            size += len(piece)
        assert size == 8_000_000
        assert server.wait() == 0


def test_an_exception_in_the_wait_breaks_the_response_visibly(server):
    # Fails when a response that the exception cut off ends like a complete one.
    with ExitStack() as stack:
        client = stack.enter_context(reading(server, "/produce?key=cut&timeout=0.5"))
        answer = client.head()
        eventually(lambda: record(server, "cut")["ended"], "the timeout")
        with pytest.raises(Broken):
            client.body_of(answer)
    assert server.logged("gevent.timeout.Timeout") or server.logged("Timeout: 0.5")
