"""Shapes of a body: valid ones are sent as they are, invalid ones are sent or refused as documented (PEP 3333)."""

import threading

import pytest
from harness.server import Server

TEXT = [("Content-Type", "text/plain")]


def returning(make, fields=TEXT):
    def app(environ, start_response):
        start_response("200 OK", list(fields))
        return make()

    return app


class Sized:
    """len() == 1 and an iterator, as Django's and Werkzeug's responses are."""

    def __init__(self, *blocks, length=1):
        self.blocks, self.length = blocks, length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(self.blocks)


class OldStyle:
    """Iterable by __getitem__ alone."""

    def __getitem__(self, index):
        return [b"one", b"two"][index]


SHAPES = {
    "list": (lambda: [b"one", b"two"], b"onetwo"),
    "tuple": (lambda: (b"one", b"two"), b"onetwo"),
    "generator": (lambda: (block for block in (b"one", b"two")), b"onetwo"),
    "iterator": (lambda: iter([b"one", b"two"]), b"onetwo"),
    "map": (lambda: map(bytes, [b"one", b"two"]), b"onetwo"),
    "dict-keys": (lambda: {b"one": 1, b"two": 2}.keys(), b"onetwo"),
    "len-1": (lambda: Sized(b"onetwo"), b"onetwo"),
    "len-2": (lambda: Sized(b"one", b"two", length=2), b"onetwo"),
    "getitem": (OldStyle, b"onetwo"),
    "empty-list": (list, b""),
    "empty-generator": (lambda: iter(()), b""),
    "empty-blocks": (lambda: [b"", b""], b""),
    "empty-blocks-between": (lambda: iter([b"", b"one", b"", b"two", b""]), b"onetwo"),
    "one-byte-blocks": (lambda: (b"%c" % (65 + n % 26) for n in range(5000)), bytes(65 + n % 26 for n in range(5000))),
    "large-blocks": (
        lambda: (bytes([n]) * 500_000 for n in range(8)),
        b"".join(bytes([n]) * 500_000 for n in range(8)),
    ),
    "large-list": (lambda: [b"x" * 1000] * 5000, b"x" * 5_000_000),
    "sizes-around-powers-of-two": (
        lambda: (b"y" * (size + off) for size in (1024, 4096, 16384, 65536) for off in (-1, 0, 1)),
        b"y" * (3 * (1024 + 4096 + 16384 + 65536)),
    ),
}


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_arrives_exactly(exchange, shape, version) -> None:
    make, body = SHAPES[shape]
    assert exchange.serve(returning(make)).ask(version=version).body == body


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_arrives_exactly_with_its_content_length(exchange, shape) -> None:
    make, body = SHAPES[shape]
    exchange.serve(returning(make, [*TEXT, ("Content-Length", str(len(body)))]))
    with exchange.client() as client:
        for _ in range(2):
            response = client.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (response.body, response.framing) == (body, "length")


def test_a_len_that_lies_does_not_cut_the_body(plain) -> None:
    # PEP 3333 lets a server trust len() == 1; ours looks whether a second block comes.
    plain.serve(returning(lambda: Sized(b"one", b"two", length=1)))
    response = plain.ask()
    assert (response.status, response.body) == (200, b"onetwo")


def test_a_body_that_is_there_at_once_gets_a_content_length(plain) -> None:
    for make in (lambda: [b"one"], lambda: [b"one", b"two"], lambda: (b"one",), list, lambda: Sized(b"one")):
        response = plain.serve(returning(make)).ask()
        assert response.framing == "length"


def test_bare_bytes_are_sent_whole_and_warned_about_once() -> None:
    with Server("bare_bytes:app") as server:
        for _ in range(3):
            response = server.get("/")
            assert (response.body, response.framing) == (b"x" * 1000, "length")
        assert server.logged("WARNING")
        assert sum("WARNING" in line for line in server.log.splitlines()) == 1, server.log


WRONG = {
    "text": lambda: "text",
    "text-block": lambda: ["text"],
    "text-behind-a-block": lambda: [b"bytes", "text"],
    "number": lambda: 5,
    "none": lambda: None,
    "none-block": lambda: [None],
    "number-block": lambda: [5],
    "list-block": lambda: [[b"x"]],
    "true": lambda: True,
    "class": lambda: Sized,
}


@pytest.mark.parametrize("shape", WRONG)
def test_a_wrong_shape_is_a_500_and_the_server_goes_on(plain, shape) -> None:
    plain.serve(returning(WRONG[shape]))
    assert plain.ask().status == 500
    assert plain.ask().status == 500


@pytest.mark.parametrize(
    "make",
    [lambda: [bytearray(b"ok")], lambda: [memoryview(b"ok")], lambda: bytearray(b"ok")],
    ids=["bytearray", "memoryview", "bare"],
)
def test_other_buffers_are_sent_or_refused(plain, make) -> None:
    # PEP 3333 speaks of bytes only. Sent exactly or refused; never as the text of their repr.
    response = plain.serve(returning(make)).ask()
    assert (response.status, response.body) == (200, b"ok") or response.status == 500


def test_bytes_subclasses_are_bytes(plain) -> None:
    class Safe(bytes):
        pass

    assert plain.serve(returning(lambda: [Safe(b"ok")])).ask().body == b"ok"


def test_an_application_may_be_any_callable(exchange) -> None:
    class Application:
        def __call__(self, environ, start_response):
            start_response("200 OK", TEXT)
            return [b"object"]

        def method(self, environ, start_response):
            return self(environ, start_response)

    class Class:
        def __init__(self, environ, start_response):
            start_response("200 OK", TEXT)

        def __iter__(self):
            yield b"class"

    assert exchange.serve(Application()).ask().body == b"object"
    assert exchange.serve(Application().method).ask().body == b"object"
    assert exchange.serve(Class).ask().body == b"class"


@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_block_is_at_the_client_before_the_next_one_is_made(plain, count) -> None:
    seen = [threading.Event() for _ in range(count)]

    def app(environ, start_response):
        start_response("200 OK", TEXT)
        for number, event in enumerate(seen):
            yield b"block %d;" % number
            assert event.wait(20), f"block {number} was held back"

    plain.serve(app)
    with plain.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        response = client.head()
        for number, event in enumerate(seen):
            assert client.chunk(response) == b"block %d;" % number
            event.set()
        assert client.chunk(response) == b""


@pytest.mark.parametrize("quick", [1, 10, 1000])
def test_a_block_after_many_quick_ones_is_not_held_back(plain, quick) -> None:
    seen = threading.Event()

    def app(environ, start_response):
        start_response("200 OK", TEXT)
        for _ in range(quick):
            yield b"q"
        yield b"last"
        assert seen.wait(20), "held back"
        yield b"!"

    plain.serve(app)
    with plain.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        response = client.head()
        while not response.body.endswith(b"last"):
            assert client.chunk(response)
        seen.set()
        while client.chunk(response):
            pass
        assert response.body == b"q" * quick + b"last!"


def test_a_block_is_not_held_back_with_a_content_length_either(plain) -> None:
    seen = threading.Event()

    def app(environ, start_response):
        start_response("200 OK", [*TEXT, ("Content-Length", "6")])
        yield b"one"
        assert seen.wait(20), "held back"
        yield b"two"

    plain.serve(app)
    with plain.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        client.head()
        assert client.read(3) == b"one"
        seen.set()
        assert client.read(3) == b"two"


def test_the_head_waits_for_the_first_block_that_is_not_empty(plain) -> None:
    reached = threading.Event()
    go = threading.Event()

    def app(environ, start_response):
        start_response("200 OK", TEXT)
        yield b""
        reached.set()
        assert go.wait(20)
        start_response("201 Created", TEXT, (ValueError, ValueError(), None))
        yield b"now"

    plain.serve(app)
    with plain.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert reached.wait(20)
        go.set()
        assert client.response().status == 201


def test_a_first_block_that_completes_its_length_is_the_whole_response(plain) -> None:
    response_read = threading.Event()

    def app(environ, start_response):
        start_response("200 OK", [*TEXT, ("Content-Length", "4")])
        yield b"done"
        response_read.wait(20)

    plain.serve(app)
    assert plain.ask().body == b"done"
    response_read.set()
