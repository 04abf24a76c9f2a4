"""Whether a server's answer is correct, read from the socket as raw bytes.

The reader accepts what RFC 9110 and RFC 9112 allow and nothing else: any field order and case, additional `Server`,
`Date` and `Connection` fields, and chunks where the application gave no `Content-Length`. The expected answer comes
from the application itself, which this process calls as a WSGI server does.

Each fault is one sentence. A missing `Date` (a MUST of RFC 9110, section 6.6.1) is a remark and no fault: the answer
arrives whole all the same, and proxies add the field.
"""

from __future__ import annotations

import functools
import io
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults

from tailrace_compare.launch import NotServing
from tailrace_compare.results import Cell, Sample

# The server has stopped after this many seconds of silence, or if a complete response takes this long.
PATIENCE = 5.0
WHOLE_SECONDS = 30.0
# A connection that is to close and is still open after this long is kept: uWSGI ends it when it is idle, after 4 s.
CLOSE_SECONDS = 2.0
# How long a byte after the end of a message is waited for. A later one is seen before the second answer.
QUIET_SECONDS = 0.02
LONGEST_LINE = 65536
# The clocks are the same; some servers format the time once a second or so.
DATE_SECONDS = 60

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d) [\t \x21-\x7e\x80-\xff]*")
FIELD_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t \x21-\x7e\x80-\xff]*?)[ \t]*")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]+)(?:[ \t]*;[\t \x21-\x7e\x80-\xff]*)?")
DATE = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
# What a server may add. socketify names itself in `uWebSockets`.
ADDED = {"server", "date", "connection", "keep-alive", "content-length", "transfer-encoding", "via", "uwebsockets"}
# Of a server that has too much to do: no answer, and not a wrong one.
REFUSALS = (429, 503)
ONCE = ("content-length", "transfer-encoding", "date", "content-type", "server")

DISQUALIFIED = "disqualified: "


class Wrong(NotServing):
    """The response is wrong; the argument explains why, in one sentence."""

    def __str__(self) -> str:
        return f"{DISQUALIFIED}{self.args[0]}"


class Ended(Exception):
    """The connection ended prematurely."""


@dataclass(frozen=True)
class Expected:
    """A request, and its correct answer.

    head: the fields that the application set; None where the server itself or an unknown application sets them.
    body: None where it is not known. most: the number of bytes of the body to read; None for all.
    """

    path: str = "/"
    method: str = "GET"
    fields: tuple[str, ...] = ()
    sent: bytes = field(default=b"", repr=False)
    status: int = 200
    head: tuple[tuple[str, str], ...] | None = None
    body: bytes | None = field(default=None, repr=False)
    most: int | None = None

    def request(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1", *self.fields]
        if self.sent:
            lines.append(f"Content-Length: {len(self.sent)}")
        return "\r\n".join([*lines, "", ""]).encode() + self.sent

    @property
    def asks_to_close(self) -> bool:
        return "Connection: close" in self.fields


@dataclass
class Message:
    """One answer as it came. length: of its Content-Length."""

    minor: int
    status: int
    fields: list[tuple[str, str]]
    body: bytes = b""
    length: int | None = None
    chunked: bool = False
    closes: bool = False

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name]

    def tokens(self, name: str) -> list[str]:
        return [token.strip().lower() for value in self.values(name) for token in value.split(",")]


class Reader:
    """The bytes of a connection. Its methods raise Ended, or TimeoutError after PATIENCE."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.data = bytearray()
        self.at = 0
        self.until = time.perf_counter() + WHOLE_SECONDS
        connection.settimeout(PATIENCE)

    def more(self) -> None:
        if time.perf_counter() > self.until:
            raise TimeoutError
        try:
            data = self.connection.recv(1 << 18)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        if not data:
            raise Ended
        self.data += data

    def line(self, what: str) -> bytes:
        """One line without its CRLF."""
        while (end := self.data.find(b"\n", self.at)) < 0:
            if len(self.data) - self.at > LONGEST_LINE:
                raise Wrong(f"{what} does not end within {LONGEST_LINE:,} bytes")
            self.more()
        line = bytes(self.data[self.at : end])
        self.at = end + 1
        if not line.endswith(b"\r"):
            raise Wrong(f"{what} ends with a bare line feed: {shown(line)}")
        return line[:-1]

    def take(self, size: int) -> bytes:
        """Up to `size` bytes, at least one."""
        if self.at == len(self.data):
            self.data.clear()
            self.at = 0
            self.more()
        taken = bytes(self.data[self.at : self.at + size])
        self.at += len(taken)
        return taken

    def exactly(self, size: int) -> bytes:
        while self.left() < size:
            self.more()
        return self.take(size)

    def left(self) -> int:
        return len(self.data) - self.at


def of_bytes(count: int) -> str:
    return f"{count:,} byte{'s' if count != 1 else ''}"


def shown(line: bytes) -> str:
    return repr(line[:60])[1:]


def read_head(reader: Reader) -> Message:
    """A status line and its fields. Raises Wrong, Ended or TimeoutError."""
    line = reader.line("the status line")
    found = STATUS_LINE.fullmatch(line)
    if found is None:
        raise Wrong(f"not a status line: {shown(line)}")
    message = Message(int(found[1]), int(found[2]), read_fields(reader, "header"))
    lengths = message.values("content-length")
    for name in ONCE:
        if len(message.values(name)) > 1:
            raise Wrong(f"header field {title(name)} arrives {len(message.values(name))} times")
    if lengths and not lengths[0].isdecimal():
        raise Wrong(f"Content-Length is not a number: {lengths[0]!r}")
    message.length = int(lengths[0]) if lengths else None
    message.chunked = bool(message.values("transfer-encoding"))
    if message.chunked and lengths:
        raise Wrong("Content-Length and Transfer-Encoding in one response (RFC 9112, section 6.2)")
    if message.chunked and message.tokens("transfer-encoding") != ["chunked"]:
        raise Wrong(f"Transfer-Encoding is {message.values('transfer-encoding')[0]!r}, which the client did not accept")
    if message.chunked and not message.minor:
        raise Wrong("Transfer-Encoding in an HTTP/1.0 response (RFC 9112, section 6.1)")
    if message.chunked and has_no_body(message.status):
        raise Wrong(f"Transfer-Encoding in a response with status {message.status} (RFC 9112, section 6.1)")
    tokens = message.tokens("connection")
    message.closes = "close" in tokens or (not message.minor and "keep-alive" not in tokens)
    return message


def read_fields(reader: Reader, what: str) -> list[tuple[str, str]]:
    fields = []
    while line := reader.line(f"a {what} field"):
        if line[:1] in b" \t":
            raise Wrong(f"a {what} field is folded over two lines (RFC 9112, section 5.2): {shown(line)}")
        found = FIELD_LINE.fullmatch(line)
        if found is None:
            raise Wrong(f"not a {what} field: {shown(line)}")
        fields.append((found[1].decode(), found[2].decode("latin-1")))
    return fields


def has_no_body(status: int) -> bool:
    return status < 200 or status in (204, 304)


def read_body(reader: Reader, message: Message) -> Iterator[bytes]:
    """The pieces of the body, framing removed. Raises Wrong, Ended or TimeoutError."""
    if has_no_body(message.status):
        return
    if message.chunked:
        while size := chunk_size(reader):
            left = size
            while left:
                piece = reader.take(left)
                left -= len(piece)
                yield piece
            if reader.exactly(2) != b"\r\n":
                raise Wrong(f"a chunk is longer than its stated size of {of_bytes(size)}")
        read_fields(reader, "trailer")
    elif message.length is not None:
        left = message.length
        while left:
            piece = reader.take(left)
            left -= len(piece)
            yield piece
    else:
        message.closes = True
        while True:
            try:
                piece = reader.take(1 << 18)
            except Ended:
                return
            yield piece


def chunk_size(reader: Reader) -> int:
    line = reader.line("a chunk size")
    found = CHUNK_LINE.fullmatch(line)
    if found is None:
        raise Wrong(f"invalid chunk size: {shown(line)}")
    return int(found[1], 16)


def read(reader: Reader, most: int | None = None) -> Message:
    """One answer, or its head and the first `most` bytes of its body. Raises Wrong; OSError when nothing comes."""
    try:
        message = read_head(reader)
        while message.status < 200:
            message = read_head(reader)
    except Ended:
        if reader.data[reader.at :]:
            raise Wrong("the connection ends within the head") from None
        raise ConnectionResetError("the connection ends without a response") from None
    except TimeoutError:
        if reader.data[reader.at :]:
            raise Wrong(f"the head does not end within {PATIENCE:g} s") from None
        raise TimeoutError(f"no response within {PATIENCE:g} s") from None
    body = bytearray()
    try:
        for piece in read_body(reader, message):
            body += piece
            if most is not None and len(body) >= most:
                break
    except (Ended, TimeoutError) as error:
        ends = isinstance(error, Ended)
        if message.length is not None:
            short = message.length - len(body)
            how = "is" if ends else "stops"
            text = f"body {how} {of_bytes(short)} short of its Content-Length ({message.length:,})"
        elif message.chunked:
            text = f"{'the connection ends' if ends else 'silence'} after {of_bytes(len(body))}, without a last chunk"
        else:
            text = "the response does not end: no Content-Length, no chunks, and the connection stays open"
        raise Wrong(text) from None
    message.body = bytes(body)
    return message


def title(name: str) -> str:
    return "-".join(word.capitalize() for word in name.split("-"))


def compare(message: Message, expected: Expected) -> None:
    """Raises Wrong if a response differs from the expected one, ConnectionRefusedError if it is a refusal."""
    if message.status in REFUSALS and expected.status not in REFUSALS:
        raise ConnectionRefusedError(f"refused with status {message.status}")
    if message.status != expected.status:
        raise Wrong(f"status {message.status} instead of {expected.status}")
    if expected.head is not None:
        compare_fields(message, expected.head)
    for date in message.values("date"):
        compare_date(date)
    if expected.body is not None:
        compare_body(message, expected.body if expected.most is None else expected.body[: expected.most], expected)


def compare_fields(message: Message, head: tuple[tuple[str, str], ...]) -> None:
    wanted: dict[str, list[str]] = {}
    for name, value in head:
        wanted.setdefault(name.lower(), []).append(value.strip(" \t"))
    for name, values in wanted.items():
        got = message.values(name)
        if got == values:
            continue
        if not got:
            raise Wrong(f"header field {title(name)}, which the application set, is missing")
        if name == "set-cookie" and len(got) != len(values):
            raise Wrong(f"the application's {len(values)} Set-Cookie fields arrive as {len(got)}")
        if len(got) > len(values):
            raise Wrong(f"header field {title(name)} arrives {len(got)} times, but was set {len(values)} times")
        # A list in several fields may arrive in one (RFC 9110, section 5.3), and without spaces (section 5.6.1).
        if name == "set-cookie" or as_list(got) != as_list(values):
            raise Wrong(f"header field {title(name)} is {', '.join(got)!r} instead of {', '.join(values)!r}")
    for name, _ in message.fields:
        if name.lower() not in wanted and name.lower() not in ADDED:
            raise Wrong(f"header field {name}, which the application did not set")


def as_list(values: Iterable[str]) -> list[str]:
    return [element.strip(" \t") for value in values for element in value.split(",")]


def compare_date(date: str) -> None:
    if not DATE.fullmatch(date):
        raise Wrong(f"Date does not have the format of RFC 9110, section 5.6.7: {date!r}")
    off = abs((datetime.now(timezone.utc) - parsedate_to_datetime(date)).total_seconds())
    if off > DATE_SECONDS:
        raise Wrong(f"Date is {off:,.0f} s off: {date!r}")


def compare_body(message: Message, body: bytes, expected: Expected) -> None:
    if expected.most is not None:
        message.body = message.body[: len(body)]
    if message.body == body:
        return
    got, size = len(message.body), len(body)
    if got < size and body.startswith(message.body):
        raise Wrong(f"body is {of_bytes(size - got)} shorter than the application's ({size:,})")
    if got > size and message.body.startswith(body):
        raise Wrong(f"body is {of_bytes(got - size)} longer than the application's ({size:,})")
    at = next(index for index, pair in enumerate(zip(message.body, body, strict=False)) if pair[0] != pair[1])
    raise Wrong(f"body differs from the application's at byte {at:,} of {size:,}")


def check(connect: Callable[[], socket.socket], expected: Expected) -> Message:
    """Sends two requests on one connection, or one if the server closes it. Returns the last response. Raises Wrong,
    and OSError without a response."""
    with connect() as connection:
        reader = Reader(connection)
        for turn in range(2):
            try:
                send(connection, expected.request())
                message = read(reader, expected.most)
            except OSError as error:
                if turn and not isinstance(error, TimeoutError):
                    raise Wrong(
                        "the server closes the connection without announcing it (RFC 9112, section 9.6)"
                    ) from None
                if turn:
                    raise Wrong("no response to the second request on a connection") from None
                raise
            compare(message, expected)
            if expected.most is not None:
                break
            if message.closes or expected.asks_to_close:
                await_end(reader, message)
                break
            await_quiet(reader)
            reader.until = time.perf_counter() + WHOLE_SECONDS
    return message


def send(connection: socket.socket, request: bytes) -> None:
    """Raises OSError. A server that has refused the request answers before it has all of it."""
    try:
        connection.sendall(request)
    except (BrokenPipeError, ConnectionResetError):
        if len(request) < LONGEST_LINE:
            raise


def await_end(reader: Reader, message: Message) -> None:
    """Raises Wrong unless the connection ends without further bytes."""
    reader.connection.settimeout(CLOSE_SECONDS)
    try:
        if not reader.left():
            reader.more()
    except Ended:
        return
    except TimeoutError:
        if message.closes:
            raise Wrong("the server announces that it closes the connection, but keeps it open") from None
        raise Wrong(
            "the server ignores Connection: close and keeps the connection open (RFC 9112, section 9.6)"
        ) from None
    raise Wrong(f"{of_bytes(reader.left())} after the end of the response: {shown(bytes(reader.data[reader.at :]))}")


def await_quiet(reader: Reader) -> None:
    """Raises Wrong if bytes follow a response. The next request detects the end of the connection."""
    if not reader.left():
        reader.connection.settimeout(QUIET_SECONDS)
        try:
            reader.more()
        except (TimeoutError, Ended):
            return
        finally:
            reader.connection.settimeout(PATIENCE)
    raise Wrong(f"{of_bytes(reader.left())} after the end of the response: {shown(bytes(reader.data[reader.at :]))}")


def remarks(message: Message) -> list[str]:
    """Remarks about a correct response."""
    return [] if message.values("date") else ["no Date (RFC 9110, section 6.6.1)"]


@functools.cache
def of_application(
    app: str,
    path: str = "/",
    *,
    method: str = "GET",
    fields: tuple[str, ...] = (),
    sent: bytes = b"",
    most: int | None = None,
) -> Expected:
    """The response of an application, which is called here. For an application that is not the comparison's own, only
    status 200 and correct framing are expected."""
    module, _, name = app.partition(":")
    if not module.startswith("served."):
        return Expected(path, method, fields, sent, most=most)
    application = getattr(import_module(f"tailrace_compare.{module}"), name)
    target, _, query = path.partition("?")
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": target, "QUERY_STRING": query}
    environ |= {
        "wsgi.input": io.BytesIO(sent),
        "wsgi.file_wrapper": FileWrapper,
        "HTTP_HOST": "127.0.0.1",
        "SERVER_PROTOCOL": "HTTP/1.1",
    }
    if sent:
        environ["CONTENT_LENGTH"] = str(len(sent))
    for line in fields:
        key, _, value = line.partition(":")
        environ[{"Content-Type": "CONTENT_TYPE"}.get(key, f"HTTP_{key.upper().replace('-', '_')}")] = value.strip()
    setup_testing_defaults(environ)
    started: list[Any] = []
    body = bytearray()

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        started[:] = [int(status.split()[0]), tuple(headers)]
        return body.extend

    result = application(environ, start_response)
    try:
        for block in [result] if isinstance(result, bytes) else result:
            body += block
            if most is not None and len(body) >= most:
                break
    finally:
        if close := getattr(result, "close", None):
            close()
    return Expected(path, method, fields, sent, started[0], started[1], bytes(body), most)


@dataclass
class CheckedCell(Cell):
    """A cell that loses all its figures, earlier and later ones, at the first sample with DISQUALIFIED."""

    wrong: bool = False

    @classmethod
    def of(cls, cell: Cell | None) -> CheckedCell:
        """With what a cell has so far."""
        return cell if isinstance(cell, cls) else cls(**vars(cell)) if cell else cls()

    def add(self, number: int, value: float | None, sample: Sample) -> None:
        super().add(number, value, sample)
        self.wrong = self.wrong or sample.note.startswith(DISQUALIFIED)
        if self.wrong:
            self.values.clear()
