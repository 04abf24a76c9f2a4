"""A client that knows bytes: sends what it is told, and takes nothing for a response that RFC 9112 does not call one.

Every leniency of an ordinary client would hide a fault of the server, so there is none: line ends are CRLF, lengths are
exact, a body that has none must have none, and whatever follows a response must be the next response or the end.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
from dataclasses import dataclass, field

from .addresses import Address

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2}) ([\t \x21-\x7e\x80-\xff]*)\r\n")
FIELD_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\x00]*?)[ \t]*\r\n")
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
HEAD_LIMIT = 1 << 20


class NotHttp(AssertionError):
    """The server sent bytes that are no HTTP response."""


class Broken(Exception):
    """The connection ended before the response did; `response` is what had come, `reset` how it ended."""

    def __init__(self, response: Response | None, reset: bool, rest: bytes = b"") -> None:
        super().__init__(
            f"broken by {'a reset' if reset else 'the end of the stream'} in {response!r}, rest {rest[:80]!r}"
        )
        self.response = response
        self.reset = reset
        self.rest = rest


@dataclass
class Response:
    """One response as it came over the wire."""

    version: str
    status: int
    reason: str
    fields: list[tuple[str, str]]
    body: bytes = b""
    framing: str = "none"
    chunks: list[int] = field(default_factory=list)
    interim: list[Response] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """The values of all field lines of that name, in order."""
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def __getitem__(self, name: str) -> str:
        values = self.all(name)
        assert len(values) == 1, f"{name}: {values} in {self}"
        return values[0]

    def __contains__(self, name: str) -> bool:
        return bool(self.all(name))

    @property
    def connection(self) -> set[str]:
        """The options of the Connection field."""
        return {
            option.strip().lower() for value in self.all("connection") for option in value.split(",") if option.strip()
        }


class Client:
    """One connection to the server under test."""

    def __init__(self, address: Address, deadline: float = 10.0) -> None:
        self.sock = address.connect(deadline)
        self.buffer = b""
        self.ended = False
        self.reset = False

    @classmethod
    def on(cls, sock: socket.socket) -> Client:
        """One that uses a connected socket."""
        client = cls.__new__(cls)
        client.sock, client.buffer, client.ended, client.reset = sock, b"", False, False
        return client

    def __enter__(self) -> Client:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def close(self) -> None:
        """Closes at once."""
        self.sock.close()

    def abort(self) -> None:
        """Closes with a reset, as a client does that is killed with unread bytes."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # Sending

    def send(self, data: bytes, step: int = 0) -> bool:
        """Sends `data`, `step` bytes a call when given; false when the server stopped listening before the end."""
        try:
            if step:
                for start in range(0, len(data), step):
                    self.sock.sendall(data[start : start + step])
            else:
                self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            return False
        return True

    def finish_sending(self) -> None:
        """Half-closes: nothing more will be sent, answers are still welcome."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    # Receiving

    def _more(self) -> bool:
        if self.ended:
            return False
        try:
            data = self.sock.recv(1 << 16)
        except (ConnectionResetError, ssl.SSLEOFError):
            self.ended = self.reset = True
            return False
        if not data:
            self.ended = True
            return False
        self.buffer += data
        return True

    def _take(self, count: int) -> bytes:
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def _line(self, partial: Response | None) -> bytes:
        start = 0
        while (end := self.buffer.find(b"\n", start)) < 0:
            start = len(self.buffer)
            if start > HEAD_LIMIT:
                raise NotHttp("a line without end")
            if not self._more():
                raise Broken(partial, self.reset, self.buffer)
        return self._take(end + 1)

    def read(self, count: int) -> bytes:
        """Exactly `count` raw bytes, fewer only at the end of the stream."""
        while len(self.buffer) < count and self._more():
            pass
        return self._take(count)

    def rest(self) -> bytes:
        """All that comes until the server closes."""
        pieces = [self.buffer]
        self.buffer = b""
        while self._more():
            pieces.append(self.buffer)
            self.buffer = b""
        return b"".join(pieces)

    def at_end(self, clean: bool = False) -> None:
        """Asserts that the server has sent all and closes; `clean` forbids a reset."""
        rest = self.rest()
        assert rest == b"", f"bytes after the response: {rest[:200]!r}"
        assert not (clean and self.reset), "the connection was reset instead of closed"

    def has_ended(self) -> bool:
        """True when the next thing on the stream is its end; waits for the one or the other."""
        return not self.buffer and not self._more()

    def head(self, partial: Response | None = None) -> Response:
        """A status line and field lines, with the rules that need no knowledge of the request."""
        line = self._line(partial)
        match = STATUS_LINE.fullmatch(line)
        if match is None:
            raise NotHttp(f"no status line: {line[:200]!r}")
        response = Response(
            version="1." + match[1].decode(), status=int(match[2]), reason=match[3].decode("latin-1"), fields=[]
        )
        while (line := self._line(partial)) != b"\r\n":
            match = FIELD_LINE.fullmatch(line)
            if match is None:
                raise NotHttp(f"no field line: {line[:200]!r}")
            response.fields.append((match[1].decode(), match[2].decode("latin-1")))
        self._check_head(response)
        return response

    @staticmethod
    def _check_head(response: Response) -> None:
        lengths, codings = response.all("content-length"), response.all("transfer-encoding")
        if len(lengths) > 1 or any(not re.fullmatch(r"[0-9]+", value) for value in lengths):
            raise NotHttp(f"Content-Length {lengths}")
        if codings not in ([], ["chunked"]):
            raise NotHttp(f"Transfer-Encoding {codings}")
        if lengths and codings:
            raise NotHttp("both Content-Length and Transfer-Encoding (RFC 9112 section 6.2)")
        if (lengths or codings) and (response.status < 200 or response.status == 204):
            raise NotHttp(f"a framing field in a {response.status} (RFC 9110 section 8.6, RFC 9112 section 6.1)")
        if codings and response.version == "1.0":
            raise NotHttp("chunked in HTTP/1.0")
        for single in ("date", "server", "content-type"):
            if len(response.all(single)) > 1:
                raise NotHttp(f"{single} twice: {response.all(single)}")

    def response(self, method: str = "GET", version: str = "1.1") -> Response:
        """The next final response to a request of this method and version; raises `Broken` when it is cut off."""
        interim = []
        while (response := self.head()).status < 200 and response.status != 101:
            interim.append(response)
        response.interim = interim
        self._read_body(response, method, version)
        return response

    def ask(self, data: bytes, method: str = "GET", version: str = "1.1") -> Response:
        """Sends a request; the next response."""
        self.send(data)
        return self.response(method, version)

    def body_of(self, response: Response, method: str = "GET", version: str = "1.1") -> Response:
        """Reads the body that belongs to a head got by `head()`."""
        self._read_body(response, method, version)
        return response

    def _read_body(self, response: Response, method: str, version: str) -> None:
        if method == "HEAD" or response.status in (204, 304) or response.status < 200:
            return
        if response.all("transfer-encoding"):
            if version == "1.0":
                raise NotHttp("chunked to an HTTP/1.0 client (RFC 9112 section 6.1)")
            response.framing = "chunked"
            self._read_chunks(response)
        elif response.all("content-length"):
            response.framing = "length"
            length = int(response["content-length"])
            response.body = self.read(length)
            if len(response.body) < length:
                raise Broken(response, self.reset)
        else:
            response.framing = "close"
            response.body = self.rest()
            if self.reset:
                raise Broken(response, True)

    def chunk(self, response: Response) -> bytes:
        """One chunk of a chunked response, added to `response`; empty for the last one."""
        line = self._line(response)
        match = CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise NotHttp(f"no chunk size: {line[:80]!r}")
        size = int(match[1], 16)
        data = self.read(size)
        response.body += data
        if len(data) < size:
            raise Broken(response, self.reset)
        response.chunks.append(size)
        end = self.read(2)
        if len(end) < 2:
            raise Broken(response, self.reset)
        if end != b"\r\n":
            raise NotHttp(f"{end!r} after a chunk of {size} (a trailer section would be one too)")
        return data

    def _read_chunks(self, response: Response) -> None:
        pieces = []
        try:
            while data := self.chunk(response):
                pieces.append(data)
                response.body = b""
        finally:
            response.body = b"".join(pieces) + response.body


def get(address: Address, target: str = "/", *fields: str) -> Response:
    """One request on a connection of its own."""
    with Client(address) as client:
        lines = [f"GET {target} HTTP/1.1", "Host: test", "Connection: close", *fields, "", ""]
        response = client.ask("\r\n".join(lines).encode("latin-1"))
        client.at_end()
        return response
