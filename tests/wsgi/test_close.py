"""close() of the iterable: exactly once on every path, after the last block (PEP 3333, "Specification Details")."""

import contextlib
import io
import threading

import pytest
from harness.wire import Broken

TEXT = [("Content-Type", "text/plain")]


class Counted:
    """An iterable whose close() counts, and tells."""

    def __init__(self, blocks, length: int | None = None) -> None:
        self.blocks, self.calls, self.closed, self.finished = blocks, 0, threading.Event(), False
        if length is not None:
            self.__class__ = type("Sized", (Counted,), {"__len__": lambda self: length})

    def __iter__(self):
        for block in self.blocks:
            if isinstance(block, BaseException):
                raise block
            yield block
        self.finished = True

    def close(self):
        self.calls += 1
        self.ended = self.finished
        self.closed.set()


def serve(exchange, make, status="200 OK", fields=TEXT):
    made = []

    def app(environ, start_response):
        start_response(status, list(fields))
        made.append(make())
        return made[-1]

    exchange.serve(app)
    return made


def once(made) -> bool:
    assert made[0].closed.wait(20), "close() was not called"
    return [each.calls for each in made] == [1] * len(made)


SHAPES = {
    "blocks": lambda: Counted([b"a", b"b", b"c"]),
    "one-block": lambda: Counted([b"a"]),
    "nothing": lambda: Counted([]),
    "empty-blocks": lambda: Counted([b"", b""]),
    "big-block": lambda: Counted([b"x" * 3_000_000]),
    "many-blocks": lambda: Counted([b"x" * 100] * 2000),
    "len-1": lambda: Counted([b"a"], 1),
}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("shape", SHAPES)
def test_close_is_called_once_after_the_last_block(exchange, shape, method) -> None:
    made = serve(exchange, SHAPES[shape])
    assert exchange.ask(method=method).status == 200
    assert once(made)
    assert made[0].ended


@pytest.mark.parametrize("shape", ["blocks", "one-block", "len-1"])
@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_close_is_called_once_when_there_must_be_no_body(plain, shape, status) -> None:
    made = serve(plain, SHAPES[shape], status, [])
    assert plain.ask().status == int(status[:3])
    assert once(made)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("x"),
        SystemExit(3),
        # On the main thread's hub it is the program's, also when a request raises it: gevent's rule.
        pytest.param(KeyboardInterrupt(), marks=pytest.mark.runs_with("threads", "tls")),
        GeneratorExit(),
        MemoryError(),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize(
    "blocks", [[], [b"a"], [b"", b""], [b"a", b"b", b"c"]], ids=["at-once", "after-one", "after-empty", "after-three"]
)
def test_close_is_called_once_after_an_exception(plain, error, blocks) -> None:
    made = serve(plain, lambda: Counted([*blocks, error]))
    try:
        status = plain.ask().status
    except Broken:
        status = None
    assert status == (None if any(blocks) else 500)
    assert once(made)


def test_close_is_called_once_when_a_block_is_no_bytes(plain) -> None:
    made = serve(plain, lambda: Counted([b"a", "text", b"c"]))
    with pytest.raises(Broken):
        plain.ask()
    assert once(made)


def test_close_is_called_once_when_there_is_more_than_promised(plain) -> None:
    made = serve(plain, SHAPES["blocks"], fields=[*TEXT, ("Content-Length", "2")])
    assert plain.ask().body == b"ab"
    assert once(made)


def test_close_is_called_once_when_less_than_promised_came(plain) -> None:
    made = serve(plain, lambda: Counted([b"a"]), fields=[*TEXT, ("Content-Length", "5")])
    with pytest.raises(Broken):
        plain.ask()
    assert once(made)


@pytest.mark.parametrize("starts", [False, True], ids=["no-head", "refused-head"])
def test_close_is_called_once_without_a_head(plain, starts) -> None:
    made = []

    def app(environ, start_response):
        made.append(Counted([b"a"]))
        with contextlib.suppress(ValueError):
            if starts:
                start_response("200 OK", [("X-A", "b\r\nc")])
        return made[-1]

    assert plain.serve(app).ask().status == 500
    assert once(made)


def test_close_is_called_once_when_iter_raises(plain) -> None:
    class NotIterable(Counted):
        def __iter__(self):
            raise RuntimeError("no iterator")

    made = serve(plain, lambda: NotIterable([]))
    assert plain.ask().status == 500
    assert once(made)


def test_close_is_called_once_when_the_client_is_gone(plain) -> None:
    started = threading.Event()

    def endless():
        while True:
            started.set()
            yield b"x" * 10_000

    made = serve(plain, lambda: Counted(endless()))
    with plain.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.head().status == 200
    assert once(made), "an endless response must end with its client"
    assert not made[0].finished


def test_an_exception_in_close_comes_after_a_complete_response(plain) -> None:
    class Failing(Counted):
        def close(self):
            super().close()
            raise RuntimeError("in close")

    made = serve(plain, lambda: Failing([b"a", b"b"]))
    assert plain.ask().body == b"ab"
    assert once(made)
    assert plain.ask().body == b"ab", "the server goes on"


@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapper", "bare"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("content", [b"", b"content", b"x" * 3_000_000], ids=["empty", "small", "big"])
def test_files_are_closed_once(plain, tmp_path, wrapped, method, content) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    calls = []
    closed = threading.Event()

    class File(io.FileIO):
        def close(self):
            if not self.closed:
                calls.append(self)
                closed.set()
            super().close()

    def app(environ, start_response):
        start_response("200 OK", TEXT)
        file = File(path)
        return environ["wsgi.file_wrapper"](file) if wrapped else file

    plain.serve(app)
    assert plain.ask(method=method).body == (b"" if method == "HEAD" else content)
    assert closed.wait(20)
    assert len(calls) == 1
