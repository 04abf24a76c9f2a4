"""`--stream-body`: what is sent to the client while its body arrives, and which other requests are served meanwhile."""

import hashlib
import ssl
import threading
from contextlib import ExitStack

import pytest
from harness.uploads import DEADLINE, FAMILIES, FRAMINGS, Play, chunk, done, expect_pong, head, streaming, uploading

EXPECT = "Expect: 100-continue"


def nothing_to_read(client):
    """Nothing has come from the server."""
    client.sock.setblocking(False)
    try:
        assert client.sock.recv(1000) is None
    except (BlockingIOError, ssl.SSLWantReadError):
        pass
    finally:
        client.sock.settimeout(DEADLINE)


# Expect: 100-continue


@FAMILIES
@FRAMINGS
@pytest.mark.parametrize(
    "read",
    [
        lambda stream: stream.read(5),
        lambda stream: stream.read1(5),
        lambda stream: stream.readline(5),
        lambda stream: stream.readlines(1)[0],
        lambda stream: next(stream),
        lambda stream: (buffer := bytearray(5), stream.readinto(buffer))[0],
    ],
    ids=["read", "read1", "readline", "readlines", "next", "readinto"],
)
def test_continue_is_sent_when_the_application_reads(family, framing, read):
    with uploading(head(EXPECT, length=5 if framing == "length" else None), family) as (server, client, request):
        server.pong()
        nothing_to_read(client)
        future = request.do(read)
        interim = client.head()
        assert (interim.status, interim.fields) == (100, [])
        client.send(b"hell\n" if framing == "length" else chunk(b"hell\n") + chunk(b""))
        assert future.result(DEADLINE) == b"hell\n"
        assert request.read() == b""
        request.answer(b"done")
        response = client.response()
        assert (response.body, response.interim) == (b"done", []), "continue is said once"
        expect_pong(client)


@FRAMINGS
@pytest.mark.parametrize("reads", ["nothing", "no-bytes"])
def test_an_application_that_does_not_read_refuses_the_body(framing, reads):
    with uploading(head(EXPECT, length=5 if framing == "length" else None)) as (_, client, request):
        if reads == "no-bytes":
            assert request.read(0) == b""
        request.answer(b"no", status="403 Forbidden")
        response = client.response()
        assert (response.status, response.body, response.interim) == (403, b"no", [])
        # Whether the client will send the body now, nobody knows: RFC 9110 section 10.1.1.
        assert response.connection == {"close"}
        client.at_end(clean=True)


def test_no_continue_goes_into_a_response_that_has_begun():
    with uploading(head(EXPECT, length=5)) as (_, client, request):
        request.stream()
        request.block(b"first")
        response = client.head()
        assert response.status == 200
        assert client.chunk(response) == b"first"
        future = request.do(lambda stream: stream.read(5))
        client.send(b"hello")
        assert future.result(DEADLINE) == b"hello"
        request.block(b"last")
        request.finish()
        assert client.chunk(response) == b"last"
        assert client.chunk(response) == b""


# Both directions at once


def echo(environ, start_response):
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    return iter(lambda: environ["wsgi.input"].read1(65536), b"")


def echo_by_write(environ, start_response):
    write = start_response("200 OK", [("Content-Type", "application/octet-stream")])
    while data := environ["wsgi.input"].read1(65536):
        write(data)
    return []


@FAMILIES
@FRAMINGS
@pytest.mark.parametrize("app", [echo, echo_by_write])
def test_each_block_comes_back_while_the_upload_goes_on(app, family, framing):
    with streaming(app, family) as server, server.client() as client:
        pieces = [b"%d" % number * (number % 50 + 1) for number in range(200)]
        client.send(head(length=sum(map(len, pieces)) if framing == "length" else None))
        response = None
        for piece in pieces:
            client.send(piece if framing == "length" else chunk(piece))
            response = response or client.head()
            got = b""
            while len(got) < len(piece):
                got += client.chunk(response)
            assert got == piece
        if framing == "chunked":
            client.send(b"0\r\n\r\n")
        assert client.chunk(response) == b""


@FAMILIES
def test_large_bodies_pass_in_both_directions_at_once(family):
    piece, count = bytes(range(256)) * 256, 400
    with streaming(echo, family) as server, server.client() as client:
        client.send(head())
        sender = threading.Thread(target=lambda: client.send(chunk(piece) * count + chunk(b"")))
        sender.start()
        response = client.head()
        got, size = hashlib.sha256(), 0
        while data := client.chunk(response):
            got.update(data)
            size += len(data)
            response.body = b""
        sender.join(DEADLINE)
        assert (size, got.hexdigest()) == (len(piece) * count, hashlib.sha256(piece * count).hexdigest())


# Threads


def test_uploads_that_dribble_leave_the_other_threads_to_others():
    play = Play()
    with streaming(play, threads=4) as server, ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(3)]
        requests, futures = [], []
        for client in clients:
            client.send(head(length=20))
            requests.append(play.begun())
            futures.append(requests[-1].do(lambda stream: stream.read()))
        for _ in range(20):
            for client in clients:
                client.send(b"x")
            server.pong()
        for client, request, future in zip(clients, requests, futures, strict=True):
            assert future.result(DEADLINE) == b"x" * 20
            done(client, request)


@pytest.mark.parametrize("threads", [1, 2])
def test_uploads_wait_for_a_thread_and_lose_nothing(threads):
    play = Play()
    with streaming(play, threads=threads) as server, ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(8)]
        for number, client in enumerate(clients):
            client.send(head(length=10, target=f"/{number}") + b"%d" % number * 4)
        for _ in clients:
            request = play.begun()
            number = int(request.environ["PATH_INFO"][1:])
            future = request.do(lambda stream: stream.read())
            clients[number].send(b"%d" % number * 6)
            assert future.result(DEADLINE) == b"%d" % number * 10
            request.answer(b"done")
            assert clients[number].response().body == b"done"
        server.pong()
