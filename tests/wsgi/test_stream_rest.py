"""`--stream-body`: the connection and wsgi.input after a request, whether its body was read or not."""

import contextlib
import tempfile
import threading

import pytest
from harness.uploads import (
    DEADLINE,
    FAMILIES,
    FRAMINGS,
    PONG,
    Play,
    chunk,
    done,
    expect_pong,
    head,
    streaming,
    uploading,
)
from server.probes import digest

# What is left unread


@FAMILIES
@pytest.mark.parametrize(("length", "read"), [(1, 0), (65536, 0), (100_000, 40_000), (10_000_000, 9_999_000)])
@pytest.mark.parametrize("sent", ["before", "after"])
def test_a_small_rest_is_dropped_and_the_connection_lives(family, length, read, sent):
    play = Play()
    with streaming(play, family) as server, server.client() as client:
        client.send(head(length=length))
        request = play.begun()
        future = request.do(lambda stream: len(stream.read(read)))
        client.send(bytes(read))
        assert future.result(DEADLINE) == read
        rest = b"GET /never HTTP/1.1\r\n\r\n" * 3000
        rest = rest[: length - read] + PONG
        if sent == "before":
            client.send(rest)
        request.answer(b"done")
        response = client.response()
        assert (response.body, response.connection) == (b"done", set()), "the response does not wait for the rest"
        if sent == "after":
            client.send(rest)
        assert client.response().body == b"pong"
        expect_pong(client)
        assert play.idle()


@FAMILIES
@FRAMINGS
@pytest.mark.parametrize("sent", ["before", "after"])
def test_a_large_or_unknown_rest_ends_the_connection_and_the_response_is_readable(family, framing, sent):
    play = Play()
    with streaming(play, family) as server, server.client() as client:
        size = 8 << 20
        piece, count = bytes(65536), size >> 16
        wire = piece if framing == "length" else chunk(piece)
        client.send(head(length=size if framing == "length" else None))
        request = play.begun()
        sender = threading.Thread(target=lambda: [client.send(wire) for _ in range(count)])
        if sent == "before":
            sender.start()
            assert request.read(1000) == bytes(1000)
        request.answer(b"done" * 1000)
        if sent == "after":
            sender.start()
        # As most clients do: the whole body first, then the response.
        sender.join(DEADLINE)
        response = client.response()
        assert (response.body, response.connection) == (b"done" * 1000, {"close"})
        client.rest()
    assert server.faults == []


CONTENT = bytes(range(256)) * 4096


def in_file(environ):
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the server
    file.write(CONTENT)
    file.seek(0)
    return environ["wsgi.file_wrapper"](file)


RESPONSES = {
    "file": in_file,
    "list": lambda environ: [CONTENT],
    "generator": lambda environ: iter([CONTENT[start : start + 1000] for start in range(0, len(CONTENT), 1000)]),
}


@FAMILIES
@pytest.mark.parametrize("length", [60_000, 1_000_000])
@pytest.mark.parametrize("name", RESPONSES)
def test_a_rest_is_left_by_every_shape_of_response(family, length, name):
    with uploading(head(length=length) + bytes(10), family, threads=1) as (_, client, request):
        assert request.read(10) == bytes(10)
        request.returns(RESPONSES[name])
        # More than the socket holds: the I/O side sends the last of it, and then drops the rest.
        response = client.head()
        assert response.connection == (set() if length < 65536 else {"close"})
        assert client.body_of(response).body == CONTENT
        if length < 65536:
            assert client.ask(bytes(length - 10) + PONG).body == b"pong"
        else:
            client.at_end()


@FRAMINGS
def test_a_response_that_began_before_the_rest_was_left_ends_well(framing):
    with uploading(head(length=1_000_000 if framing == "length" else None)) as (_, client, request):
        request.stream()
        request.block(b"first")
        response = client.head()
        assert client.chunk(response) == b"first"
        request.finish()
        assert client.chunk(response) == b""
        client.at_end(clean=True)


@FAMILIES
@FRAMINGS
def test_requests_behind_a_streamed_body_are_served(family, framing):
    play = Play()
    with streaming(play, family) as server, server.client() as client:
        start, end = (b"he", b"llo") if framing == "length" else (chunk(b"he"), chunk(b"llo") + chunk(b""))
        length = 5 if framing == "length" else None
        for _ in range(3):
            client.send(head(length=length))
            request = play.begun()
            client.send(start)
            assert request.read(2) == b"he"
            # The end of this body, two whole requests, and a whole upload.
            client.send(end + PONG + PONG + head(length=length) + start + end + PONG)
            assert request.read() == b"llo"
            request.answer(b"one")
            behind = play.begun()
            assert behind.read() == b"hello"
            behind.answer(b"two")
            bodies = [client.response().body for _ in range(5)]
            assert bodies == [b"one", b"pong", b"pong", b"two", b"pong"]


@FAMILIES
def test_a_rest_that_is_awaited_holds_no_thread(family):
    play = Play()
    with streaming(play, family, threads=1) as server, server.client() as client:
        client.send(head(length=60_000))
        done(client, play.begun())
        server.pong()
        client.send(bytes(30_000))
        server.pong()
        client.send(bytes(30_000))
        expect_pong(client)


@FAMILIES
@pytest.mark.parametrize("way", ["silence", "half-close", "close"])
def test_a_rest_that_does_not_come_is_not_answered_again(family, way):
    play = Play()
    with streaming(play, family, body_timeout=0.3) as server:
        with server.client() as client:
            client.send(head(length=60_000) + b"hello")
            done(client, play.begun())
            if way == "close":
                client.close()
            else:
                if way == "half-close":
                    client.finish_sending()
                client.at_end()
        server.pong()
    assert server.faults == []


def test_more_than_any_buffer_may_follow_a_body():
    play = Play()
    with streaming(play) as server, server.client() as client:
        for end in ("read", "left"):
            client.send(head(length=10) + b"hello")
            request = play.begun()
            assert request.read(5) == b"hello"
            sender = threading.Thread(target=client.send, args=(b"world" + PONG * 5000,))
            sender.start()
            if end == "read":
                assert request.read() == b"world"
            done(client, request)
            assert [client.response().body for _ in range(5000)] == [b"pong"] * 5000
            sender.join(DEADLINE)


# When the request is over


@pytest.mark.parametrize("left", ["read", "unsent"])
def test_a_kept_input_cannot_be_read_when_its_request_is_over(left):
    play = Play()
    with streaming(play) as server, server.client() as client:
        client.send(head(length=10))
        request = play.begun()
        if left == "read":
            client.send(bytes(10))
            assert request.read(10) == bytes(10)
        done(client, request)
        if left == "unsent":
            client.send(bytes(10))
        # Its connection reads another body meanwhile.
        client.send(head(length=6) + b"se")
        another = play.begun()
        for read in (
            lambda: request.input.read(1),
            request.input.read,
            lambda: request.input.read1(1),
            request.input.readline,
            request.input.readlines,
            lambda: next(request.input),
            lambda: request.input.readinto(bytearray(1)),
        ):
            with pytest.raises(ValueError, match="request"):
                read()
        client.send(b"cret")
        assert another.read() == b"secret"
        done(client, another)


@FRAMINGS
@pytest.mark.parametrize("size", [4, 100])
def test_a_kept_input_never_gives_the_bytes_of_another_request(framing, size):
    play = Play()
    with streaming(play) as server, server.client() as client:
        client.send(head(length=10 if framing == "length" else None))
        request = play.begun()
        client.send(bytes(10) if framing == "length" else chunk(bytes(10)) + chunk(b""))
        got = request.read(size)
        done(client, request)
        client.send(head(length=6) + b"se")
        another = play.begun()
        # What had been received for it already it may still give, as a body that was read whole does.
        with contextlib.suppress(ValueError):
            while data := request.input.read(3):
                got += data
        assert bytes(10).startswith(got)
        client.send(b"cret")
        assert another.read() == b"secret"
        done(client, another)


@FAMILIES
@FRAMINGS
def test_a_thread_that_reads_is_released_when_the_request_is_over(family, framing):
    with uploading(head(length=10_000_000 if framing == "length" else None), family) as (server, client, request):
        client.send(b"hello" if framing == "length" else chunk(b"hello"))
        assert request.read(5) == b"hello"
        raised = []

        def read():
            try:
                raised.append(request.input.read())
            except ValueError as error:
                raised.append(str(error))

        reader = threading.Thread(target=read)
        reader.start()
        server.pong()
        done(client, request)
        reader.join(DEADLINE)
        assert not reader.is_alive()
        assert "request" in raised[0]


@FAMILIES
@FRAMINGS
def test_a_client_that_sends_all_of_a_large_body_first_gets_a_large_response(family, framing):
    play = Play()
    answer, body = bytes(range(256)) * 80_000, bytes(30_000_000)
    with streaming(play, family) as server, server.client(60) as client:
        client.send(head(length=len(body) if framing == "length" else None))
        play.begun().answer(answer)
        assert digest(client.ask(body if framing == "length" else chunk(body) + b"0\r\n\r\n").body) == digest(answer)


@pytest.mark.parametrize(("family", "framing"), [("tcp", "length"), ("unix", "chunked")])
def test_a_client_that_takes_its_time_for_a_large_body_gets_its_response_then(family, framing):
    play = Play()
    answer, piece, count = bytes(range(256)) * 80_000, bytes(100_000), 30
    with streaming(play, family, write_timeout=1) as server, server.client(30) as client:
        client.send(head(length=count * len(piece) if framing == "length" else None))
        play.begun().answer(answer)
        for _ in range(count):
            # Three times as long in all as it may take nothing of the response.
            threading.Event().wait(0.1)
            assert client.send(piece if framing == "length" else chunk(piece)), "the server gave it up"
        assert digest(client.ask(b"" if framing == "length" else chunk(b"")).body) == digest(answer)


# A second greenlet that reads gets an error: test_a_second_reader_waits_in_a_thread_and_fails_in_a_greenlet.
@pytest.mark.runs_with("threads", "tls")
def test_the_properties_of_a_stream_can_be_read_while_a_thread_reads():
    with uploading(head(length=10)) as (server, client, request):
        got = []
        readers = [threading.Thread(target=lambda: got.append(request.input.read(5))) for _ in range(2)]
        for reader in readers:
            reader.start()
        server.pong()
        assert request.input.readable()
        assert not request.input.closed
        request.input.close()
        client.send(b"helloworld")
        for reader in readers:
            reader.join(DEADLINE)
        assert sorted(got) == [b"hello", b"world"]
        done(client, request)
