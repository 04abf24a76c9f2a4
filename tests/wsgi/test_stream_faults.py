"""`--stream-body`: a body that breaks a rule, or arrives too slowly, causes an error of the read with a status."""

import threading
from contextlib import ExitStack

import pytest
from harness.uploads import DEADLINE, FAMILIES, FRAMINGS, GREEDY, PONG, Play, chunk, done, head, streaming, uploading
from harness.wire import Broken

import tailrace

# The body breaks a rule

MALFORMED = {
    "size": b"xyz\r\n",
    "no-size": b"\r\n",
    "bare-lf": b"5\nhello\r\n",
    "data-too-long": b"3\r\nhello\r\n",
    "trailer": b"0\r\nno field line\r\n\r\n",
    "request-inside": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
}
FAULTS = {
    **{name: (b"5\r\nhello\r\n" + rest, 400) for name, rest in MALFORMED.items()},
    "max-body-by-chunk-size": (b"5\r\nhello\r\n3e4\r\n", 413),
    "beyond-any-number": (b"5\r\nhello\r\n" + b"f" * 17 + b"\r\n", 413),
    "max-body-by-chunks": (b"5\r\nhello\r\n" + chunk(bytes(100)) * 10, 413),
}


@FAMILIES
@pytest.mark.parametrize("name", FAULTS)
def test_an_uncaught_body_error_gives_the_response_its_status(family, name):
    wire, status = FAULTS[name]
    with uploading(head(), family, threads=1, max_body=1000) as (server, client, request):
        client.send(wire)
        assert request.read(5) == b"hello"
        error = request.propagate(lambda stream: stream.read()).exception(DEADLINE)
        assert type(error) is tailrace.RequestBodyError
        assert error.status == status
        assert str(error)
        response = client.response()
        assert (response.status, response.connection) == (status, {"close"})
        client.send(PONG)
        client.at_end()
        server.pong()
    assert server.faults == []


@pytest.mark.parametrize("name", FAULTS)
def test_an_application_that_catches_a_body_error_responds_itself(name):
    wire, status = FAULTS[name]
    with uploading(head(), max_body=1000) as (server, client, request):
        client.send(wire + PONG)
        for read in GREEDY.values():
            # What of the good bytes a failed read has taken is its own affair, but it fails.
            assert request.raised(read, tailrace.RequestBodyError).status == status
        request.raises_ever_after(tailrace.RequestBodyError, status)
        request.answer(b"I saw it", status="422 Unprocessable Content")
        response = client.response()
        assert (response.status, response.body, response.connection) == (422, b"I saw it", {"close"})
        client.at_end()
    assert server.faults == []


@pytest.mark.parametrize("way", ["half-close", "silence"])
def test_a_connection_whose_body_broke_off_is_closed_whatever_its_head_said(way):
    with uploading(head(length=100) + b"hello", body_timeout=0.3) as (_, client, request):
        request.stream()
        request.block(b"first")
        # So little was left of the body then that the connection would have lived on.
        response = client.head()
        assert response.connection == set()
        if way == "half-close":
            client.finish_sending()
        kind = tailrace.ClientDisconnectedError if way == "half-close" else tailrace.RequestBodyError
        request.raised(lambda stream: stream.read(), kind)
        request.block(b"last")
        request.finish()
        client.send(PONG)
        assert client.body_of(response).body == b"firstlast"
        client.at_end()


def test_an_error_after_the_head_breaks_the_response_visibly():
    with uploading(head()) as (server, client, request):
        request.stream()
        request.block(b"first")
        response = client.head()
        assert client.chunk(response) == b"first"
        client.send(b"nonsense\r\n")
        error = request.propagate(lambda stream: stream.read()).exception(DEADLINE)
        assert error.status == 400
        with pytest.raises(Broken):
            client.body_of(response)
        assert request.closed.wait(DEADLINE)
    assert request.closes == 1
    assert server.faults == []


def test_an_exception_of_the_applications_own_is_still_its_own():
    def app(environ, start_response):
        try:
            environ["wsgi.input"].read()
        except OSError as error:
            raise RuntimeError("no body") from error

    with streaming(app) as server, server.client() as client:
        assert client.ask(head() + b"nonsense\r\n").status == 500
        client.at_end()
    assert len(server.faults) == 1
    assert "RuntimeError" in server.faults[0]


NO_STATUS = "none"


@pytest.mark.parametrize("status", [400, 422, 499, NO_STATUS, None, "422", -1, 7, 99, 200, 204, 304, 399, 500, 60_000])
def test_an_error_that_the_application_made_itself_is_checked(status):
    def app(environ, start_response):
        error = tailrace.RequestBodyError("<script>alert(1)</script>")
        if status != NO_STATUS:
            error.status = status
        raise error

    with streaming(app) as server, server.client() as client:
        response = client.ask(head(length=0))
        client.finish_sending()
        client.at_end()
    assert b"<script" not in response.body
    if status in (400, 422, 499):
        assert response.status == status
        assert b"&lt;script&gt;alert(1)&lt;/script&gt;" in response.body
        assert server.faults == []
    else:
        assert response.status == 500
        assert b"script" not in response.body
        tracebacks = [record.exc_info for record in server.records if record.exc_info]
        assert [(kind, trace is not None) for kind, _, trace in tracebacks] == [(tailrace.RequestBodyError, True)]


@FRAMINGS
@pytest.mark.parametrize("size", [999, 1000])
def test_a_body_of_the_largest_size_is_read(framing, size):
    with uploading(head(length=size if framing == "length" else None), max_body=1000) as (_, client, request):
        client.send(bytes(size) if framing == "length" else chunk(bytes(10)) + chunk(bytes(size - 10)) + chunk(b""))
        assert request.read() == bytes(size)
        request.answer(b"done")
        assert client.response().connection == set()


def test_a_length_beyond_the_largest_is_refused_before_the_application_is_called():
    play = Play()
    with streaming(play, max_body=1000) as server, server.client() as client:
        response = client.ask(head("Expect: 100-continue", length=1001))
        assert (response.status, response.interim, response.connection) == (413, [], {"close"})
        client.at_end()
        server.pong()
        assert play.idle()


# The body comes too slowly


@FAMILIES
@FRAMINGS
def test_a_client_that_falls_silent_is_answered_408(family, framing):
    with uploading(head(length=100 if framing == "length" else None), family, threads=1, body_timeout=0.3) as (
        server,
        client,
        request,
    ):
        client.send(b"hello" if framing == "length" else chunk(b"hello"))
        error = request.propagate(lambda stream: stream.read()).exception(DEADLINE)
        assert type(error) is tailrace.RequestBodyError
        assert error.status == 408
        response = client.response()
        assert (response.status, response.connection) == (408, {"close"})
        client.at_end()
        server.pong()
    assert server.faults == []


@FRAMINGS
def test_a_client_that_dribbles_below_the_least_rate_is_answered_408(framing):
    with uploading(head(length=1000 if framing == "length" else None), body_timeout=1) as (server, client, request):
        future = request.propagate(lambda stream: stream.read())
        # A byte now and then is no silence; only the rate can end this.
        tick = threading.Event()
        future.add_done_callback(lambda _: tick.set())
        for _ in range(200):
            if tick.wait(0.05):
                break
            client.send(b"x" if framing == "length" else chunk(b"x"))
        error = future.exception(DEADLINE)
        assert type(error) is tailrace.RequestBodyError
        assert error.status == 408
        assert client.response().status == 408
    assert server.faults == []


@pytest.mark.nightly(gate=3)
@FAMILIES
@pytest.mark.parametrize("begun", [False, True], ids=["before-the-head", "behind-a-block"])
def test_the_application_may_take_its_time(family, begun):
    times = {"body_timeout": 0.2, "header_timeout": 0.2, "keepalive_timeout": 0.2, "write_timeout": 0.2}
    with uploading(head(length=15), family, **times) as (_, client, request):
        if begun:
            request.stream()
            request.block(b"first")
        for _ in range(3):
            # Longer than any time of the client's, but nobody waits for the client.
            threading.Event().wait(0.5)
            client.send(b"hello")
            assert request.read(5) == b"hello"
        if begun:
            request.finish()
        else:
            request.answer(b"first")
        assert client.response().body == b"first"


def test_the_time_in_the_queue_is_not_the_clients():
    play = Play()
    with (
        streaming(play, threads=1, body_timeout=0.2, header_timeout=0.2, keepalive_timeout=0.2) as server,
        server.client() as first,
        ExitStack() as stack,
    ):
        first.send(head(length=10))
        running = play.begun()
        # Connected only now: the time until the head is the client's.
        second = stack.enter_context(server.client())
        second.send(head(length=10) + b"hello")
        threading.Event().wait(0.6)
        for client, request in ((first, running), (second, None)):
            request = request or play.begun()
            client.send(b"world" if client is second else b"helloworld")
            assert request.read() == b"helloworld"
            done(client, request)
