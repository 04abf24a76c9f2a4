"""`--stream-body`: a client that disconnects within a body causes an error of the read, and not the end of the body."""

import socket
import struct

import pytest
from harness.uploads import DEADLINE, FAMILIES, FRAMINGS, GREEDY, Play, chunk, head, streaming, uploading
from harness.wire import Broken

import tailrace


def vanish(client, way):
    if way == "half-close":
        client.finish_sending()
        return
    if way == "reset":
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_the_errors_are_os_errors_of_the_package():
    for kind in (tailrace.ClientDisconnectedError, tailrace.RequestBodyError):
        assert issubclass(kind, OSError)
        assert kind.__name__ in tailrace.__all__
    assert not issubclass(tailrace.ClientDisconnectedError, tailrace.RequestBodyError)
    # A cancelled request raises the base, which no handler of errors catches.
    assert issubclass(tailrace.ClientDisconnectedError, tailrace.ClientDisconnected)
    assert not issubclass(tailrace.ClientDisconnected, Exception)


# The client vanishes


@FAMILIES
@FRAMINGS
@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
@pytest.mark.parametrize("name", GREEDY)
def test_a_body_that_breaks_off_never_looks_like_its_end(family, framing, way, name):
    with uploading(head(length=100 if framing == "length" else None), family, threads=1) as (server, client, request):
        future = request.propagate(GREEDY[name])
        client.send(b"hello" if framing == "length" else chunk(b"hello"))
        vanish(client, way)
        assert type(future.exception(DEADLINE)) is tailrace.ClientDisconnectedError
        if way == "half-close":
            response = client.response()
            assert (response.status, response.connection) == (400, {"close"})
            client.at_end()
        # The only thread is free again.
        server.pong()
    assert server.faults == []


@FRAMINGS
@pytest.mark.parametrize("at", ["first-byte", "chunk-size", "chunk-end", "trailer"])
@pytest.mark.parametrize("way", ["close", "half-close"])
def test_a_body_may_break_off_anywhere(framing, at, way):
    sent = {"first-byte": b"", "chunk-size": b"5", "chunk-end": b"5\r\nhello\r", "trailer": chunk(b"hello") + b"0\r\n"}
    with uploading(head(length=100 if framing == "length" else None) + sent[at]) as (_, client, request):
        vanish(client, way)
        request.raised(lambda stream: stream.read(), tailrace.ClientDisconnectedError)
        request.raises_ever_after(tailrace.ClientDisconnectedError)
        request.answer(b"too late")


@FAMILIES
@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
def test_the_iterable_is_closed_once_when_the_client_vanishes(family, way):
    with uploading(head(length=100) + b"hello", family, threads=1) as (server, client, request):
        request.stream()
        assert request.read(5) == b"hello"
        request.block(b"first")
        response = client.head()
        assert client.chunk(response) == b"first"
        future = request.propagate(lambda stream: stream.read(5))
        vanish(client, way)
        assert type(future.exception(DEADLINE)) is tailrace.ClientDisconnectedError
        assert request.closed.wait(DEADLINE)
        if way == "half-close":
            with pytest.raises(Broken):
                client.body_of(response)
        server.pong()
    assert request.closes == 1
    assert server.faults == []


def test_an_application_may_answer_a_client_that_half_closed():
    play = Play()
    with streaming(play) as server, server.client() as client:
        client.send(head(length=100) + b"hello")
        client.finish_sending()
        request = play.begun()
        request.raised(lambda stream: stream.read(), tailrace.ClientDisconnectedError)
        request.answer(b"I have 5 bytes", status="409 Conflict")
        response = client.response()
        assert (response.status, response.body, response.connection) == (409, b"I have 5 bytes", {"close"})
        client.at_end()
