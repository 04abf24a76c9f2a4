"""The applications that every server runs: plain WSGI, one for each shape of response.

Requests that are not the measured one: `/ready` answers a word in the applications whose own answer a server may not
survive, `/times`, `/growth` and `/met` hand out what the application itself has measured.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from . import files, rhythm

Environ = dict[str, Any]
Start = Callable[..., Any]
Body = Iterable[bytes]

DECK = files.deck()
WORDS = files.words()
PAGE_PATH = files.DIRECTORY / "page"
SLEEP_SECONDS = 0.1
NAP_SECONDS = 0.02
GROWTH_SECONDS = 1.0

PONG_HEADERS = [
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Content-Length", "4"),
    ("Cache-Control", "no-store"),
    ("Vary", "Accept, Cookie"),
    ("ETag", '"2f-5e9b"'),
    ("Last-Modified", "Sat, 01 Aug 2026 12:00:00 GMT"),
    ("Content-Language", "en"),
    ("X-Request-Id", "01985f1e-7a3c-7c11-9d0e-6d2f0f6b8a11"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Content-Security-Policy", "default-src 'self'"),
    # Two, which no server may join (RFC 9110, section 5.3).
    ("Set-Cookie", "seen=1; Path=/; HttpOnly; SameSite=Lax"),
    ("Set-Cookie", "theme=dark; Path=/; SameSite=Lax"),
]


def pong(environ: Environ, start_response: Start) -> Body:
    """Four bytes behind 15 header fields. A new list each time: a server may add to it."""
    start_response("200 OK", PONG_HEADERS.copy())
    return [b"pong"]


def hello(environ: Environ, start_response: Start) -> Body:
    """The least that an application answers; its system calls are counted."""
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "13")])
    return [b"Hello, World!"]


CUSTOMERS = [{"number": n, "name": f"Customer {n}", "orders": [n, 2 * n], "active": n % 3 > 0} for n in range(100)]


def rows(environ: Environ, start_response: Start) -> Body:
    """100 rows as JSON."""
    body = json.dumps(CUSTOMERS).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def view(environ: Environ, start_response: Start) -> Body:
    """A file from /files/NAME, read whole by an application that knows nothing better; /wrapped/NAME is the same
    through wsgi.file_wrapper."""
    _, folder, name = f"{environ['PATH_INFO']}//".split("/")[:3]
    if name not in ("page", "deck", "words"):
        return small(start_response, b"ready")
    path = files.DIRECTORY / name
    if folder == "wrapped":
        return of_length(start_response, path.stat().st_size, wrapped(environ, path))
    content = path.read_bytes()
    return of_length(start_response, len(content), [content])


def small(start_response: Start, content: bytes) -> Body:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(content)))])
    return [content]


def page(environ: Environ, start_response: Start) -> Body:
    """A page read from its file for each request."""
    with open(PAGE_PATH, "rb", buffering=0) as file:
        content = file.read()
    start_response("200 OK", [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(content)))])
    return [content]


class Timed:
    """A response that notes the time from the call of the application to close(); its blocks come from a generator."""

    times: ClassVar[list[float]] = []

    def __init__(self, begun: float, blocks: Iterator[bytes]) -> None:
        self.begun = begun
        self.blocks = blocks

    def __iter__(self) -> Iterator[bytes]:
        return self.blocks

    def close(self) -> None:
        self.times.append(1000 * (time.perf_counter() - self.begun))

    @classmethod
    def answer(cls, start_response: Start) -> Body:
        """The times since the last answer, in milliseconds."""
        taken, cls.times = cls.times, []
        return small(start_response, json.dumps(taken).encode())


def word_blocks() -> Iterator[bytes]:
    return pieces(WORDS, 128)


def deck_byte_blocks() -> Iterator[bytes]:
    return pieces(DECK, 1)


def words(environ: Environ, start_response: Start) -> Body:
    """2.5 MB in blocks of as many bytes as the path says, 128 by default, and no Content-Length."""
    begun = time.perf_counter()
    if environ["PATH_INFO"] == "/times":
        return Timed.answer(start_response)
    if environ["PATH_INFO"] == "/ready":
        return small(start_response, b"ready")
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
    return Timed(begun, pieces(WORDS, int(environ["PATH_INFO"].strip("/") or 128)))


def pieces(content: bytes, size: int) -> Iterator[bytes]:
    return (content[index : index + size] for index in range(0, len(content), size))


# One payload in every shape, at /SIZE/SHAPE.
PAYLOADS = {"100k": ("part", DECK[: files.PART_BYTES]), "688k": ("deck", DECK)}
PAYLOAD_SHAPES: dict[str, Callable[[Environ, bytes, Path], Any]] = {
    # The forgotten brackets: iterating bytes gives numbers.
    "bare": lambda _, content, __: content,
    "list": lambda _, content, __: [content],
    "file": lambda _, __, path: path.open("rb"),
    "wrapper": lambda environ, _, path: wrapped(environ, path),
    "4096": lambda _, content, __: pieces(content, 4096),
    "128": lambda _, content, __: pieces(content, 128),
    "1": lambda _, content, __: pieces(content, 1),
}


def payload(environ: Environ, start_response: Start) -> Body:
    _, size, shape = f"{environ['PATH_INFO']}//".split("/")[:3]
    if size not in PAYLOADS:
        return small(start_response, b"ready")
    name, content = PAYLOADS[size]
    return of_length(start_response, len(content), PAYLOAD_SHAPES[shape](environ, content, files.DIRECTORY / name))


def deck_bytes(environ: Environ, start_response: Start) -> Body:
    """688,128 blocks of one byte, which are timed."""
    begun = time.perf_counter()
    if environ["PATH_INFO"] == "/times":
        return Timed.answer(start_response)
    if environ["PATH_INFO"] == "/ready":
        return small(start_response, b"ready")
    return of_length(start_response, len(DECK), Timed(begun, deck_byte_blocks()))


def sleep(environ: Environ, start_response: Start) -> Body:
    if environ["PATH_INFO"] != "/ready":
        time.sleep(SLEEP_SECONDS)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"slept"]


def between(environ: Environ, start_response: Start) -> Body:
    """Two blocks, no Content-Length, and sleep between them; patched, where the server patches."""
    if environ["PATH_INFO"] == "/ready":
        return small(start_response, b"ready")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return two_blocks()


def two_blocks() -> Iterator[bytes]:
    yield b"before"
    time.sleep(SLEEP_SECONDS)
    yield b"after"


def events(environ: Environ, start_response: Start) -> Body:
    """A stream of server-sent events without end: one a second, with its number and when it was made."""
    if environ["PATH_INFO"] != "/events":
        return small(start_response, b"ready")
    start_response("200 OK", [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")])
    return seconds()


def seconds() -> Iterator[bytes]:
    for number in itertools.count():
        yield b"data: %d %d\n\n" % (number, time.perf_counter_ns())
        time.sleep(1)


def rhythms(environ: Environ, start_response: Start) -> Body:
    """Blocks in the random rhythm that the query names, each stamped; no Content-Length."""
    if environ["PATH_INFO"] == "/ready":
        return small(start_response, b"ready")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return rhythmic(int(environ["QUERY_STRING"]))


def rhythmic(seed: int) -> Iterator[bytes]:
    for burst in rhythm.bursts(seed):
        for size in burst.sizes[:-1]:
            yield rhythm.made(rhythm.QUICK, size)
        yield rhythm.made(rhythm.LAST, burst.sizes[-1])
        time.sleep(burst.pause)


def awaited(environ: Environ, start_response: Start) -> Body:
    """Blocks, each followed by a wait until the client says by a datagram that it has the block. The query is the
    number of blocks and for how many seconds to wait for each."""
    if environ["PATH_INFO"] == "/ready":
        return small(start_response, b"ready")
    count, patience = environ["QUERY_STRING"].split(",")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return awaiting(int(count), float(patience))


def awaiting(count: int, patience: float) -> Iterator[bytes]:
    """Each block has its number, the port for the datagram, the moment when it was made, and how many were there."""
    there = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as word:
        word.bind(("127.0.0.1", 0))
        for number in range(count):
            word.settimeout(patience)
            yield b"block %d %d %d %d\n" % (number, word.getsockname()[1], time.perf_counter_ns(), there)
            try:
                while int(word.recv(16)) < number:
                    pass
                there += 1
            except TimeoutError:
                pass
        yield b"block %d 0 %d %d\n" % (count, time.perf_counter_ns(), there)


def nap(environ: Environ, start_response: Start) -> Body:
    """Of a known capacity: threads / NAP_SECONDS."""
    if environ["PATH_INFO"] != "/ready":
        time.sleep(NAP_SECONDS)
    return small(start_response, b"slept")


class Growth:
    """How many requests are being handled at once, and how long it took from the first to the most."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = 0
        self.most = 0
        self.first: float | None = None
        self.seconds = 0.0

    def enter(self) -> bool:
        """True while requests are still to wait."""
        moment = time.perf_counter()
        with self.lock:
            self.first = moment if self.first is None else self.first
            self.now += 1
            if self.now > self.most:
                self.most, self.seconds = self.now, moment - self.first
            return moment - self.first < GROWTH_SECONDS

    def leave(self) -> None:
        with self.lock:
            self.now -= 1


GROWTH = Growth()


def growth(environ: Environ, start_response: Start) -> Body:
    """Sleeps, and counts who sleeps with it. Requests that come after the first has left do not wait."""
    if environ["PATH_INFO"] == "/growth":
        return small(start_response, json.dumps({"most": GROWTH.most, "ms": 1000 * GROWTH.seconds}).encode())
    if environ["PATH_INFO"] == "/ready":
        return small(start_response, b"ready")
    if GROWTH.enter():
        time.sleep(GROWTH_SECONDS)
    GROWTH.leave()
    return small(start_response, b"slept")


def upload(environ: Environ, start_response: Start) -> Body:
    """Reads the body in blocks of 64 KiB and answers its length."""
    return small(start_response, str(read_length(environ)).encode())


def read_length(environ: Environ) -> int:
    left = int(environ.get("CONTENT_LENGTH") or 0)
    total = 0
    stream = environ["wsgi.input"]
    while left > 0 and (block := stream.read(min(left, 65536))):
        left -= len(block)
        total += len(block)
    return total


class Meeting:
    """How many requests a server lets into the application at once: each waits for the others, up to a number of them
    and some time, and goes on without them afterwards."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.now = 0
        self.most = 0
        self.over: float | None = None

    def attend(self) -> None:
        with self.changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self.over = self.over or time.perf_counter() + MEETING_SECONDS
            self.changed.notify_all()
            while self.most < MEETING and (left := self.over - time.perf_counter()) > 0:
                self.changed.wait(left)
            self.now -= 1

    def end(self) -> int:
        """The most there were, and a new meeting."""
        with self.changed:
            most, self.most, self.over = self.most, 0, None
            return most


MEETING = 128
MEETING_SECONDS = 0.5
MEETINGS = Meeting()
CROWD = bytes(files.CROWD_BYTES)
CROWD_PATH = files.DIRECTORY / "crowd"
FLAT_PATH = files.DIRECTORY / "flat"
FLAT_BLOCK = bytes(65536)


def crowd(environ: Environ, start_response: Start) -> Body:
    """10 MB in several shapes for slow readers, the length of an upload, and pong for those who measure meanwhile."""
    path = environ["PATH_INFO"]
    if path == "/list":
        return of_length(start_response, files.CROWD_BYTES, [CROWD])
    if path == "/own":
        # Bytes that no other response shares; zeros would be no memory before they are written.
        return of_length(start_response, files.CROWD_BYTES, [b"o" * files.CROWD_BYTES])
    if path == "/generator":
        blocks = (b"o" * 50_000 for _ in range(files.CROWD_BYTES // 50_000))
        return of_length(start_response, files.CROWD_BYTES, blocks)
    if path == "/file":
        return of_length(start_response, files.CROWD_BYTES, wrapped(environ, CROWD_PATH))
    if path == "/upload":
        return upload(environ, start_response)
    if path == "/meet":
        MEETINGS.attend()
        return small(start_response, b"met")
    if path == "/met":
        return small(start_response, str(MEETINGS.end()).encode())
    return pong(environ, start_response)


def flat(environ: Environ, start_response: Start) -> Body:
    """2 GiB, or as many bytes as the query says, as a file, or in blocks of 64 KiB."""
    size = int(environ.get("QUERY_STRING") or files.FLAT_BYTES)
    if environ["PATH_INFO"] == "/file":
        return of_length(start_response, files.FLAT_BYTES, wrapped(environ, FLAT_PATH))
    if environ["PATH_INFO"] == "/generator":
        return of_length(start_response, size, (FLAT_BLOCK for _ in range(size // len(FLAT_BLOCK))))
    return small(start_response, b"ready")


def of_length(start_response: Start, length: int, body: Body) -> Body:
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(length))])
    return body


def wrapped(environ: Environ, path: Path) -> Body:
    """As PEP 3333 shows it; in blocks of 64 KiB where a server has no wsgi.file_wrapper."""
    file = path.open("rb")
    if "wsgi.file_wrapper" in environ:
        body: Body = environ["wsgi.file_wrapper"](file, 65536)
        return body
    return iter(lambda: file.read(65536), b"")
