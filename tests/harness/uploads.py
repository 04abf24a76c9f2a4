"""Servers with `--stream-body` inside the test's process, and an application that the test plays step by step.

`Play` is the application. Each of its requests is a `Request`, whose steps the test gives one by one; they run on the
application's thread, so the test decides what is sent before and after each read, and nothing has to sleep. The client
and the server share an interpreter: a read that kept it locked would hang the test.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from .addresses import Address, address_of
from .greenlets import embedded
from .wire import Client, Response

DEADLINE = 20.0
PONG = b"GET /pong HTTP/1.1\r\nHost: test\r\n\r\n"
FAMILIES = pytest.mark.parametrize("family", ["tcp", "unix"])
FRAMINGS = pytest.mark.parametrize("framing", ["length", "chunked"])


def head(
    *fields: str, length: int | None = None, target: str = "/", version: str = "1.1", method: str = "POST"
) -> bytes:
    """The head of an upload: of `length` bytes, or chunked."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return "\r\n".join([f"POST {target} HTTP/{version}", "Host: test", framing, *fields, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk; of nothing, the end of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


# Reads that want more than the client sends.
GREEDY = {
    "read": lambda stream: stream.read(),
    "read-n": lambda stream: stream.read(1000),
    "read1": lambda stream: b"".join(iter(lambda: stream.read1(3), b"")),
    "readinto": lambda stream: stream.readinto(bytearray(1000)),
    "readline": lambda stream: stream.readline(),
    "readlines": lambda stream: stream.readlines(),
    "iteration": lambda stream: list(stream),
}


class Request:
    """One call of the application. Until a step ends it, the application waits for the test's next step."""

    def __init__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> None:
        self.environ = environ
        self.input = environ["wsgi.input"]
        self.start_response = start_response
        self.closes = 0
        self.closed = threading.Event()
        self._steps: queue.SimpleQueue[tuple[str, Any, Future[Any]]] = queue.SimpleQueue()

    # What the test asks for

    def do(self, step: Callable[[Any], Any]) -> Future[Any]:
        """Applies `step` to wsgi.input; the application catches what it raises, which is in the future too."""
        return self._give("do", step)

    def read(self, size: int = -1) -> bytes:
        """`wsgi.input.read(size)`, waited for."""
        return self.do(lambda stream: stream.read(size)).result(DEADLINE)

    def raised(self, step: Callable[[Any], Any], kind: type[BaseException]) -> Any:
        """The error of a step, which must be of this very kind."""
        error = self.do(step).exception(DEADLINE)
        assert type(error) is kind, error
        return error

    def raises_ever_after(self, kind: type[BaseException], status: int | None = None) -> None:
        """An error is not an end: whatever is tried again raises it again."""
        for read in [*GREEDY.values(), lambda stream: stream.read(1), lambda stream: stream.read1(1), next]:
            error = self.raised(read, kind)
            assert status is None or error.status == status

    def propagate(self, step: Callable[[Any], Any]) -> Future[Any]:
        """As `do`, but the application lets through what `step` raises."""
        return self._give("propagate", step)

    def answer(self, *blocks: bytes, status: str = "200 OK") -> None:
        """The application returns a list of blocks."""
        self._give("answer", (blocks, status))

    def returns(self, make: Callable[[dict[str, Any]], Any]) -> None:
        """The application returns what `make` makes of its environ."""
        self._give("returns", make)

    def stream(self) -> None:
        """The application returns an iterable that takes its steps from the test, too."""
        self._give("stream", None)

    def block(self, data: bytes) -> None:
        """The iterable yields a block."""
        self._give("block", data)

    def finish(self) -> None:
        """The iterable ends."""
        self._give("finish", None)

    def _give(self, what: str, argument: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._steps.put((what, argument, future))
        return future

    # What the server asks for

    def called(self) -> Any:
        """The body of the application."""
        what, argument = self._play()
        if what == "stream":
            self.start_response("200 OK", [("Content-Type", "application/octet-stream")])
            return self
        if what == "returns":
            self.start_response("200 OK", [("Content-Type", "application/octet-stream")])
            return argument(self.environ)
        blocks, status = argument
        self.start_response(status, [("Content-Type", "application/octet-stream")])
        return list(blocks)

    def __iter__(self) -> Request:
        return self

    def __next__(self) -> bytes:
        what, data = self._play()
        if what == "finish":
            raise StopIteration
        assert what == "block"
        return data

    def close(self) -> None:
        """Of the iterable."""
        self.closes += 1
        self.closed.set()

    def _play(self) -> tuple[str, Any]:
        while True:
            what, argument, future = self._steps.get(timeout=DEADLINE)
            if what not in ("do", "propagate"):
                return what, argument
            try:
                result = argument(self.input)
            except BaseException as error:
                future.set_exception(error)
                if what == "propagate":
                    raise
            else:
                future.set_result(result)


class Play:
    """The application: `/pong` is answered at once, every other request is played by the test."""

    def __init__(self) -> None:
        self._begun: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] == "/pong":
            start_response("200 OK", [("Content-Length", "4")])
            return [b"pong"]
        request = Request(environ, start_response)
        self._begun.put(request)
        return request.called()

    def begun(self) -> Request:
        """The next request for which the application has been called."""
        return self._begun.get(timeout=DEADLINE)

    def idle(self) -> bool:
        """True when the application has not been called again."""
        return self._begun.empty()


class Streaming:
    """A server with `--stream-body` in this process, and what it logged."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.records: list[logging.LogRecord] = []

    def client(self, deadline: float = DEADLINE) -> Client:
        """A connection."""
        return Client(self.address, deadline)

    def pong(self) -> None:
        """Another client is served."""
        with self.client() as client:
            expect_pong(client)

    @property
    def faults(self) -> list[str]:
        """Lines that would alarm an operator; complete once the server has ended."""
        return [
            f"{record.getMessage()} {record.exc_info}"
            for record in self.records
            if record.exc_info or record.levelno >= logging.ERROR
        ]


def expect_pong(client: Client) -> Response:
    """The connection serves another request."""
    response = client.ask(PONG)
    assert (response.status, response.body) == (200, b"pong")
    return response


def done(client: Client, request: Request) -> None:
    """The application answers, and the client gets it."""
    request.answer(b"done")
    assert client.response().body == b"done"


class _Recorder(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


@contextlib.contextmanager
def streaming(app: Any, family: str = "tcp", **options: Any) -> Iterator[Streaming]:
    """Serves `app` with streamed bodies over TCP or a UNIX socket; options as for `tailrace.serve_in_thread`."""
    logger = logging.getLogger("tailrace")
    with contextlib.ExitStack() as stack:
        keywords: dict[str, Any] = {"stream_body": True, "graceful_timeout": 5, **options}
        address = None
        if family == "unix":
            address = Address(path=stack.enter_context(tempfile.TemporaryDirectory()) + "/socket")
            keywords["bind"] = address.bind
        server = Streaming(address or Address())
        recorder = _Recorder(server.records)
        logger.addHandler(recorder)
        stack.callback(logger.removeHandler, recorder)
        url = stack.enter_context(embedded(app, **keywords))
        if address is None:
            server.address = address_of(url)
        yield server


@contextlib.contextmanager
def uploading(sent: bytes, family: str = "tcp", **options: Any) -> Iterator[tuple[Streaming, Client, Request]]:
    """A server, a client that has sent these bytes, and its request, which the application has begun."""
    play = Play()
    with streaming(play, family, **options) as server, server.client() as client:
        client.send(sent)
        yield server, client, play.begun()
