"""`--stream-body`: the application starts with the head, and wsgi.input reads from the connection."""

import io
import sys
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


class Upload:
    """The bytes of one request whose body of `size` bytes follows its head."""

    def __init__(self, framing, size, *fields):
        self.chunked = framing == "chunked"
        self.head = head(*fields, length=None if self.chunked else size)
        self.end = b"0\r\n\r\n" if self.chunked else b""

    def piece(self, data):
        return chunk(data) if self.chunked else data


@FAMILIES
@FRAMINGS
def test_the_application_starts_with_the_head_and_reads_what_comes(family, framing):
    play = Play()
    with streaming(play, family) as server, server.client() as client:
        upload = Upload(framing, 10)
        client.send(upload.head)
        request = play.begun()
        assert request.environ.get("CONTENT_LENGTH") == ("10" if framing == "length" else None)
        assert request.environ["wsgi.input_terminated"] is True
        client.send(upload.piece(b"hello"))
        assert request.read(5) == b"hello"
        client.send(upload.piece(b"world") + upload.end)
        assert request.read() == b"world"
        done(client, request)
        expect_pong(client)


@FRAMINGS
def test_a_body_that_came_with_its_head_reads_the_same(framing):
    play = Play()
    with streaming(play) as server, server.client() as client:
        upload = Upload(framing, 10)
        client.send(upload.head + upload.piece(b"hello") + upload.piece(b"world") + upload.end + PONG)
        request = play.begun()
        assert request.environ["wsgi.input_terminated"] is True
        assert [request.read(7), request.read(7), request.read(7)] == [b"hellowo", b"rld", b""]
        done(client, request)
        assert client.response().body == b"pong"


def test_a_request_without_a_body_reads_as_the_end():
    play = Play()
    with streaming(play) as server, server.client() as client:
        for sent in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", head(length=0), head() + b"0\r\n\r\n"):
            client.send(sent)
            request = play.begun()
            assert request.environ["wsgi.input_terminated"] is True
            assert [request.read(), request.read(1)] == [b"", b""]
            done(client, request)


@FAMILIES
@FRAMINGS
def test_read_waits_for_all_it_asks_for_and_read1_for_a_byte(family, framing):
    play = Play()
    with streaming(play, family) as server, server.client() as client:
        upload = Upload(framing, 26)
        client.send(upload.head)
        request = play.begun()

        def between(step, *pieces):
            """The result of a step that is begun before the pieces come, one by one, each seen by the server."""
            future = request.do(step)
            for piece in pieces:
                assert not future.done()
                client.send(upload.piece(piece))
                server.pong()
            return future.result(DEADLINE)

        assert between(lambda stream: stream.read(6), b"ab", b"cd", b"ef") == b"abcdef"
        assert between(lambda stream: stream.readline(), b"gh", b"ij\nkl") == b"ghij\n"
        # What is there comes at once, however much is asked for.
        assert request.do(lambda stream: stream.read1()).result(DEADLINE) == b"kl"
        assert between(lambda stream: stream.read1(100), b"m") == b"m"
        assert between(lambda stream: stream.readline(3), b"no", b"p") == b"nop"
        buffer = bytearray(4)
        assert between(lambda stream: stream.readinto(buffer), b"qr", b"st") == 4
        assert buffer == b"qrst"
        assert between(lambda stream: stream.readinto1(buffer), b"uv") == 2
        assert buffer == b"uvst"
        assert between(lambda stream: next(stream), b"w", b"\n") == b"w\n"
        future = request.do(lambda stream: stream.read())
        client.send(upload.piece(b"y") + upload.end)
        assert future.result(DEADLINE) == b"y"
        assert request.do(lambda stream: stream.read1(1)).result(DEADLINE) == b""
        request.answer()
        assert client.response().status == 200


def test_asking_for_nothing_does_not_wait():
    with uploading(head(length=3)) as (_, client, request):
        assert request.read(0) == b""
        assert request.do(lambda stream: stream.read1(0)).result(DEADLINE) == b""
        assert request.do(lambda stream: stream.readline(0)).result(DEADLINE) == b""
        assert request.do(lambda stream: stream.readinto(bytearray())).result(DEADLINE) == 0
        client.send(b"abc")
        assert request.read(3) == b"abc"
        done(client, request)


@FRAMINGS
@pytest.mark.parametrize("size", [1 << 20, 1 << 40, sys.maxsize])
def test_more_may_be_asked_for_than_there_is(framing, size):
    play = Play()
    with streaming(play) as server, server.client() as client:
        upload = Upload(framing, 5)
        for read in ("read", "read1", "readline", "readlines"):
            client.send(upload.head)
            request = play.begun()
            client.send(upload.piece(b"hello") + upload.end)
            future = request.do(lambda stream, read=read: getattr(stream, read)(size))
            assert future.result(DEADLINE) == ([b"hello"] if read == "readlines" else b"hello")
            request.answer()
            assert client.response().status == 200


@FAMILIES
@FRAMINGS
def test_a_client_may_end_its_direction_behind_the_body(family, framing):
    play = Play()
    with streaming(play, family) as server, server.client() as client:
        upload = Upload(framing, 10)
        client.send(upload.head + upload.piece(b"hello"))
        request = play.begun()
        assert request.read(5) == b"hello"
        client.send(upload.piece(b"world") + upload.end)
        client.finish_sending()
        server.pong()
        assert request.read() == b"world"
        request.stream()
        response = None
        for block in (b"one", b"two", b"three"):
            request.block(block)
            response = response or client.head()
            assert client.chunk(response) == block
        request.finish()
        assert client.chunk(response) == b""
        client.at_end(clean=True)


def test_an_http_1_0_client_may_upload():
    with uploading(head("Expect: 100-continue", length=10, version="1.0")) as (_, client, request):
        client.send(b"hello")
        assert request.read(5) == b"hello"
        client.send(b"world")
        assert request.read() == b"world"
        request.answer(b"done")
        response = client.response(version="1.0")
        assert (response.body, response.interim) == (b"done", [])
        client.at_end(clean=True)


@FRAMINGS
def test_text_is_read_line_by_line_as_it_comes(framing):
    play = Play()
    with streaming(play) as server, server.client() as client:
        upload = Upload(framing, 12)
        client.send(upload.head)
        request = play.begun()
        text = request.do(lambda stream: io.TextIOWrapper(stream, "utf-8")).result(DEADLINE)
        client.send(upload.piece("grün\nb".encode()))
        assert request.do(lambda _: text.readline()).result(DEADLINE) == "grün\n"
        client.send(upload.piece(b"lau\n!") + upload.end)
        assert request.do(lambda _: list(text)).result(DEADLINE) == ["blau\n", "!"]
        done(client, request)


def test_trailers_and_chunk_extensions_are_no_part_of_the_body():
    with uploading(head("Trailer: X-Sum")) as (server, client, request):
        client.send(b"5;name=value\r\nhello\r\n0\r\nX-Sum: 5\r\nX-More: 6\r\n")
        future = request.do(lambda stream: stream.read())
        server.pong()
        assert not future.done(), "the trailer section has not ended"
        client.send(b"\r\n" + PONG)
        assert future.result(DEADLINE) == b"hello"
        done(client, request)
        assert client.response().body == b"pong"


def test_a_body_larger_than_any_buffer_arrives_whole():
    body = bytes(range(256)) * 4096 * 5 + b"the end"
    play = Play()
    with streaming(play) as server, server.client() as client:
        for reads in (lambda stream: stream.read(), lambda stream: b"".join(iter(lambda: stream.read1(100_000), b""))):
            for framing in ("length", "chunked"):
                upload = Upload(framing, len(body))
                client.send(upload.head)
                request = play.begun()
                future = request.do(reads)
                sender = threading.Thread(target=client.send, args=(upload.piece(body) + upload.end,))
                sender.start()
                assert future.result(DEADLINE) == body
                sender.join(DEADLINE)
                done(client, request)
