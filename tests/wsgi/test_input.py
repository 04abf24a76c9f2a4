"""wsgi.input: a binary stream with an end, however the body arrived (PEP 3333, "Input and Error Streams")."""

import contextlib
import io
import random

import pytest

BODY = b"first line\nsecond line\n\nfourth, longer line\nlast without end"
CHUNKED = "Transfer-Encoding: chunked"


def chunked(body: bytes, size: int = 7) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def reading(read):
    """An application that answers with repr() of what `read(stream)` gave."""

    def app(environ, start_response):
        text = repr(read(environ["wsgi.input"])).encode()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]

    return app


# Name, what is done to wsgi.input, whether wsgiref.validate allows it: each must give what a BytesIO gives.
READS = {
    "read": (lambda stream: stream.read(), False),
    "read-minus-1": (lambda stream: stream.read(-1), True),
    "read-none": (lambda stream: stream.read(None), False),
    "read-exactly": (lambda stream: stream.read(len(BODY)), True),
    "read-past-the-end": (lambda stream: stream.read(100_000), True),
    "read-zero": (lambda stream: [stream.read(0), stream.read(3)], True),
    "read-by-sevens": (lambda stream: [stream.read(7) for _ in range(12)], True),
    "read-by-one": (lambda stream: [stream.read(1) for _ in range(len(BODY) + 2)], True),
    "read-after-the-end": (
        lambda stream: [stream.read(1000), stream.read(1000), stream.read(-1), stream.readline(), list(stream)],
        True,
    ),
    "readline": (lambda stream: [stream.readline() for _ in range(7)], True),
    "readline-limit": (lambda stream: [stream.readline(5) for _ in range(20)], True),
    "readline-limit-on-the-end-of-a-line": (
        lambda stream: [stream.readline(11), stream.readline(11), stream.readline(12)],
        True,
    ),
    "readline-minus-1": (lambda stream: [stream.readline(-1), stream.readline(-1)], True),
    "readline-none": (lambda stream: [stream.readline(None), stream.readline(None)], False),
    "readline-zero": (lambda stream: [stream.readline(0), stream.readline()], True),
    "readlines": (lambda stream: stream.readlines(), True),
    "readlines-hint": (lambda stream: [stream.readlines(15), stream.readlines(1), stream.read(-1)], True),
    "readlines-large-hint": (lambda stream: stream.readlines(100_000), True),
    "iteration": (lambda stream: list(stream), True),
    "iteration-then-read": (lambda stream: [next(iter(stream)), stream.read(-1)], True),
    "seek": (
        lambda stream: [
            *(stream.tell(), stream.seek(0, 2), stream.tell(), stream.read(), stream.seek(0), stream.read(5)),
            *(stream.seek(-3, 1), stream.read(4), stream.seek(10), stream.readline(), stream.seek(-9, 2)),
            *(stream.readlines(), stream.seek(1), list(stream), stream.tell()),
        ],
        False,
    ),
    "mixed": (
        lambda stream: [stream.read(3), stream.readline(), stream.read(5), next(iter(stream)), stream.readlines()],
        True,
    ),
    "readline-then-read": (
        lambda stream: [stream.readline(), stream.read(4), stream.readline(3), stream.read(-1)],
        True,
    ),
}


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("name", READS)
def test_input_reads_like_a_file(exchange, name, framing) -> None:
    read, valid = READS[name]
    if exchange.validated and not valid:
        # The validator asks for exactly one argument; that a call without one works is tried without it.
        exchange.validated = False
    exchange.serve(reading(read))
    if framing == "length":
        response = exchange.ask("/", method="POST", body=BODY)
    else:
        response = exchange.ask("/", CHUNKED, method="POST", body=chunked(BODY))
    assert response.body.decode() == repr(read(io.BytesIO(BODY)))


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("how", ["no-body", "zero-length", "empty-chunked"])
def test_an_empty_body_reads_as_the_end(plain, name, how) -> None:
    read, _ = READS[name]
    # At the end, the first raises, and the second goes beyond it in a BytesIO.
    if {"next", "seek"} & set(read.__code__.co_names):
        read = list
    plain.serve(reading(read))
    fields, body = {
        "no-body": ((), b""),
        "zero-length": (("Content-Length: 0",), b""),
        "empty-chunked": ((CHUNKED,), b"0\r\n\r\n"),
    }[how]
    response = plain.ask("/", *fields, method="POST", body=body)
    assert response.body.decode() == repr(read(io.BytesIO(b"")))


@pytest.mark.parametrize("size", [131_072, 131_073, 300_000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize(
    "name", ["read-minus-1", "read-by-sevens", "readlines", "readline-limit", "mixed", "iteration", "seek"]
)
def test_a_body_in_a_temporary_file_reads_the_same(plain, name, framing, size) -> None:
    lines = random.Random(size)
    body = b"".join(bytes(lines.choices(b"abc \n", k=50)) for _ in range(size // 50 + 1))[:size]
    read, _ = READS[name]
    plain.serve(reading(lambda stream: hash(repr(read(stream)))), client_memory="1MiB")
    if framing == "length":
        response = plain.ask("/", method="POST", body=body)
    else:
        response = plain.ask("/", CHUNKED, method="POST", body=chunked(body, 333))
    assert response.body.decode() == repr(hash(repr(read(io.BytesIO(body)))))


def test_a_temporary_file_is_gone_after_its_request(plain, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    plain.serve(reading(lambda stream: [len(list(tmp_path.iterdir())), len(stream.read())]), client_memory="1MiB")
    assert plain.ask("/", method="POST", body=b"x" * 200_000).body == b"[0, 200000]", "unlinked while it is in use"
    assert list(tmp_path.iterdir()) == []


def test_the_application_is_called_only_with_a_whole_body(plain) -> None:
    called = []

    def app(environ, start_response):
        called.append(environ["PATH_INFO"])
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    plain.serve(app)
    with plain.client() as client:
        client.send(b"POST /vanished HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf")
    for body in (b"5\r\nhe", b"5\r\nhello\r\n", b"nonsense\r\n"):
        with plain.client() as client:
            client.send(b"POST /vanished HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
            client.finish_sending()
            client.rest()
    assert plain.ask("/after").body == b"ok"
    assert called == ["/after"], "a body that was cut must not look like a short one"


def test_input_cannot_be_read_after_its_request(plain) -> None:
    kept = []

    def app(environ, start_response):
        kept.append(environ["wsgi.input"])
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    plain.serve(app)
    with plain.client() as client:
        client.send(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nworld"
        )
        client.response()
        client.response()
    # Whether an old stream still gives its own bytes or nothing is open; another request's bytes it must not give.
    with contextlib.suppress(ValueError):
        assert kept[0].read(-1) in (b"hello", b"")


@pytest.mark.parametrize("size", [100, 300_000])
def test_what_was_read_before_the_first_seek_is_there_only_in_a_file(plain, size) -> None:
    body = random.Random(5).randbytes(size)

    def read(stream):
        first = stream.read(10)
        is_there = True
        try:
            stream.seek(5)
        except io.UnsupportedOperation:
            is_there = False
        stream.seek(10)
        place = stream.tell()
        return is_there, first + stream.read() == body, stream.seek(place), stream.read() == body[10:]

    plain.serve(reading(read), client_memory="1MiB")
    expected = repr((size > 200_000, True, 10, True))
    assert plain.ask("/", method="POST", body=body).body.decode() == expected
