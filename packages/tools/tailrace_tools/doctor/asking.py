"""Asking: the request as bytes, the client's process, and the response that it got."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote, urlsplit

from tailrace.errors import ConfigError

# Of a longer response no more than this is kept (bytes), and what needs all of it is not said.
_MAX_KEPT: Final = 256 << 20
_CLIENT: Final = Path(__file__).with_name("client.py")
# Characters of a request target that are not escaped, beside those that never are.
_IN_TARGETS: Final = "%/:@!$&'()*+,;=?~[]"
_DEFAULTS: Final = {
    "host": ("Host", "localhost"),
    "user-agent": ("User-Agent", "tailrace-doctor"),
    "accept": ("Accept", "*/*"),
    "accept-encoding": ("Accept-Encoding", "gzip"),
}


@dataclass(frozen=True)
class Request:
    """What is asked. target: path and query, percent-encoded."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a field that is sent."""
        return next((value for given, value in self.headers if given.lower() == name.lower()), None)

    def encoded(self) -> bytes:
        """As it is sent. The connection ends with the response."""
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{name}: {value}" for name, value in self.headers)]
        lines += [f"Content-Length: {len(self.body)}"] if self.body or self.method not in ("GET", "HEAD") else []
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + self.body


def request(url: str, method: str | None, headers: tuple[str, ...], body: bytes | None) -> Request:
    """The request that the options describe. Raises ConfigError.

    method: None: POST with a body, else GET. headers: each as `Name: value`. They replace those that are sent
    otherwise: Host, User-Agent, Accept and Accept-Encoding.
    """
    if not url.startswith("/"):
        parts = urlsplit(url)
        remedy = quote(parts.path or "/", safe=_IN_TARGETS) if parts.netloc else f"/{url}"
        raise ConfigError(f"--url {url}: give the path as the application sees it, starting with a slash: {remedy}")
    method = method or ("GET" if body is None else "POST")
    if not method.isascii() or not method.isalpha():
        raise ConfigError(f"--method {method}: not a method; write a method such as GET or POST")
    fields = dict(_DEFAULTS)
    given: list[tuple[str, str]] = []
    for header in headers:
        name, colon, value = header.partition(":")
        name, value = name.strip(), value.strip()
        token = name.replace("-", "").replace("_", "")
        if not colon or not token.isascii() or not token.isalnum() or "\n" in value or "\r" in value:
            raise ConfigError(f"--header {header!r}: write name and value, as in 'Accept: text/html'")
        if name.lower() in ("content-length", "connection", "transfer-encoding"):
            raise ConfigError(f"--header {header!r}: the doctor sends {name} itself; remove it")
        try:
            value.encode("latin-1")
        except UnicodeEncodeError:
            raise ConfigError(f"--header {header!r}: a value can contain only ISO-8859-1 characters") from None
        fields.pop(name.lower(), None)
        given.append((name, value))
    target = quote(url.partition("#")[0], safe=_IN_TARGETS)
    return Request(method.upper(), target, (*fields.values(), *given), body or b"")


@dataclass(frozen=True)
class Response:
    """What the client got.

    body: None when it is too long to be kept. body_bytes: its length without chunk framing. framing_bytes: head aside,
    what came around it. ms: until the last byte. shares_read: the first read of the client had head and body bytes.
    is_cut: the client disconnected after the time it was given.
    """

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    body_bytes: int
    framing_bytes: int
    ms: float
    shares_read: bool
    is_cut: bool

    def header(self, name: str) -> str | None:
        """The value of a field."""
        return next((value for given, value in self.headers if given.lower() == name.lower()), None)


class _Recorded:
    """A socket for `http.client`, from which the bytes come that have arrived."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> IO[bytes]:
        return io.BytesIO(self._content)


def parse(content: bytes, told: dict[str, Any], method: str) -> Response:
    """The response in these bytes. told: what the client's process has answered. Raises ConfigError."""
    raw = http.client.HTTPResponse(_Recorded(content), method=method)  # type: ignore[arg-type]
    try:
        raw.begin()
    except (http.client.HTTPException, OSError):
        reason = "nothing arrived within --timeout" if told["is_cut"] else "the connection was closed"
        raise ConfigError(f"no response: {reason}") from None
    head = content.find(b"\r\n\r\n") + 4
    try:
        body = raw.read()
    except http.client.IncompleteRead as error:
        body = error.partial
    is_whole = told["bytes"] == len(content)
    return Response(
        status=raw.status,
        reason=raw.reason,
        headers=tuple(raw.getheaders()),
        body=body if is_whole else None,
        body_bytes=len(body) if is_whole else told["bytes"] - head,
        framing_bytes=max(0, len(content) - head - len(body)),
        ms=told["ms"],
        shares_read=told["first"] > head,
        is_cut=told["is_cut"],
    )


class Client:
    """The client's process. Thread: the one that made it."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, address: tuple[str, int], seconds: float) -> None:
        self._process = process
        self._folder = folder
        self._address = address
        self._seconds = seconds

    def ask(self, asked: Request) -> Response:
        """Sends a request and waits for the end of the response. Raises ConfigError without one."""
        sent, received = self._folder / "request", self._folder / "response"
        sent.write_bytes(asked.encoded())
        host, port = self._address
        command = {"host": host, "port": port, "request": str(sent), "response": str(received)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**command, "seconds": self._seconds, "most": _MAX_KEPT}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        told: dict[str, Any] = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in told:
            raise ConfigError(f"the client cannot send the request: {told['error']}")
        return parse(received.read_bytes(), told, asked.method)


@contextlib.contextmanager
def client(address: tuple[str, int], seconds: float) -> Iterator[Client]:
    """A client for the server at this address; inside the context its process runs. seconds: for one response."""
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-doctor-") as folder,
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CLIENT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            yield Client(process, Path(folder), address, seconds)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
