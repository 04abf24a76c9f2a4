"""Clients of held responses, and what they look at in the process that holds them."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .addresses import Address
from .server import children
from .wire import Client, Response

DEADLINE = 30.0


class Stream:
    """A held stream. Once it is made, its response has begun, so that it has its channels."""

    def __init__(
        self, address: Address, target: str, *fields: str, version: str = "1.1", body: bytes = b": open\n\n"
    ) -> None:
        """body: what its response begins with."""
        self.client = Client(address, DEADLINE)
        lines = [f"GET {target} HTTP/{version}", "Host: test", *fields, "", ""]
        self.client.send("\r\n".join(lines).encode("latin-1"))
        self.response = self.client.head()
        self.is_chunked = "transfer-encoding" in self.response
        self.pending = b""
        assert self.response.status == 200, (self.response, self.client.rest())
        begun = self.read(len(body))
        assert begun == body, begun

    def __enter__(self) -> Stream:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def _more(self) -> bool:
        """Reads more of the body; false at its end."""
        more = self.client.chunk(self.response) if self.is_chunked else self.client.read(1)
        if not self.is_chunked and more:
            more += self.client.buffer
            self.client.buffer = b""
        # It would grow for as long as the stream lasts.
        self.response.body = b""
        self.response.chunks.clear()
        self.pending += more
        return bool(more)

    def read(self, count: int) -> bytes:
        """So many bytes of the body, fewer at its end."""
        while len(self.pending) < count and self._more():
            pass
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken

    def event(self) -> dict[str, str]:
        """The fields of the next event of an event stream; comments are passed over. Fails at the end of the stream."""
        while True:
            while b"\n\n" not in self.pending:
                assert self._more(), f"the stream has ended behind {self.pending!r}"
            text, _, self.pending = self.pending.partition(b"\n\n")
            lines = [line for line in text.decode().split("\n") if not line.startswith(":")]
            if lines:
                return dict(line.split(": ", 1) for line in lines)

    def data(self, count: int) -> list[str]:
        """The data of the next events."""
        return [self.event()["data"] for _ in range(count)]

    def ending(self) -> bytes:
        """What comes until the response is complete. Fails if it is cut off."""
        while self._more():
            pass
        self.client.at_end(clean=True)
        return self.pending


def poll(address: Address, target: str, *fields: str, method: str = "GET", body: bytes = b"") -> Client:
    """A client that has asked for a response that is held."""
    client = Client(address, DEADLINE)
    lines = [f"{method} {target} HTTP/1.1", "Host: test", *fields]
    lines += [f"Content-Length: {len(body)}"] * bool(body)
    client.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    return client


def item(channel: str, content: str | None = None, **more: Any) -> dict[str, Any]:
    """An item of a document: content is for held streams."""
    formats = {} if content is None else {"http-stream": {"content": content}}
    return {"channel": channel, "formats": {**formats, **more.pop("formats", {})}, **more}


def post(address: Address, document: object, *fields: str, path: str = "/publish/", method: str = "POST") -> Response:
    """The answer of an address of `--publish-bind`. document: bytes, or items."""
    body = document if isinstance(document, bytes) else json.dumps({"items": document}).encode()
    with Client(address, DEADLINE) as client:
        lines = [f"{method} {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *fields, "", ""]
        client.send("\r\n".join(lines).encode() + body)
        return client.response(method)


def publish(address: Address, *items: dict[str, Any]) -> None:
    """Publishes at an address of `--publish-bind`."""
    answer = post(address, list(items))
    assert answer.status == 200, answer


def holder_process(master: int) -> int | None:
    """The process that holds the connections of this master's server."""
    for child in children(master):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"holder" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"[")[0]:
                return child
    return None


def figures(process: int) -> dict[str, Any]:
    """What the holder in this process, or whose listening socket this process has, counts."""
    name = holder_address(process)
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(DEADLINE)
        line.connect(b"\0" + name)
        line.sendall(struct.pack("<I", 1) + b"F")
        answer = b""
        while True:
            more = line.recv(65536)
            assert more, f"the holder has ended behind {answer!r}"
            answer += more
            with contextlib.suppress(json.JSONDecodeError):
                found: dict[str, Any] = json.loads(answer)
                return found


def holder_address(process: int, purpose: str = "holder") -> bytes:
    """The abstract name of the socket where this process is passed connections, or with "application", requests."""
    sockets = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets.add(str(entry.readlink()))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if f"socket:[{words[6]}]" in sockets and len(words) > 7 and words[7].startswith(f"@tailrace-{purpose}-"):
            return words[7][1:].encode()
    raise AssertionError(f"process {process} has no socket of the holder, or for it")


def links(pid: int) -> list[str]:
    """What the descriptors of a process refer to."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


@contextlib.contextmanager
def spare_descriptors(holder: int, streams: int, count: int) -> Iterator[None]:
    """The process that holds these streams has so many numbers left for descriptors."""
    # It has no connection to another process, which is about to end.
    end = time.monotonic() + DEADLINE
    while sum(link.startswith("socket:") for link in links(holder)) != 1 + streams:
        assert time.monotonic() < end, "it has other sockets than its own"
        time.sleep(0.01)
    used = {int(entry.name) for entry in Path(f"/proc/{holder}/fd").iterdir()}
    free = [number for number in range(len(used) + count + 1) if number not in used]
    before = resource.prlimit(holder, resource.RLIMIT_NOFILE)
    resource.prlimit(holder, resource.RLIMIT_NOFILE, (free[count], before[1]))
    try:
        yield
    finally:
        resource.prlimit(holder, resource.RLIMIT_NOFILE, before)


class Numbered(threading.Thread):
    """A client of an event stream whose events are the numbers from `first` on, each one exactly once."""

    def __init__(self, address: Address, target: str, first: int = 0) -> None:
        super().__init__()
        self.stream = Stream(address, target)
        self.first = self.next = first
        self.fault = ""

    def run(self) -> None:
        """Reads until the end of the stream, or the first number that is not the next one."""
        try:
            while True:
                found = int(self.stream.event()["data"])
                if found != self.next:
                    self.fault = f"{found} came, and {self.next} was next"
                    return
                self.next += 1
        except BaseException as error:
            self.fault = f"behind {self.next}: {error!r}"

    def __enter__(self) -> Numbered:  # noqa: PYI034 - typing.Self is of Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.stream.client.sock.shutdown(socket.SHUT_RDWR)
        self.join()
        self.stream.client.close()

    def has(self, count: int) -> None:
        """Returns once it has this many events; fails if it has another one."""
        end = time.monotonic() + DEADLINE
        while not self.fault and self.next - self.first < count:
            assert time.monotonic() < end, f"{self.next - self.first} of {count} events came"
            time.sleep(0.005)
        assert not self.fault, self.fault


class Publisher(threading.Thread):
    """Publishes the numbers from 0 on without pause, by a function that is given the number, until the block ends."""

    def __init__(self, publish: Callable[[int], object]) -> None:
        super().__init__()
        self._publish = publish
        self._over = threading.Event()
        self.count = 0
        self.fault: BaseException | None = None

    def run(self) -> None:
        """Publishes until told to stop, or the first fault."""
        try:
            while not self._over.is_set():
                self._publish(self.count)
                self.count += 1
        except BaseException as error:
            self.fault = error

    def __enter__(self) -> Publisher:  # noqa: PYI034 - typing.Self is of Python 3.11
        self.start()
        return self

    def stop(self) -> int:
        """Returns once it has ended: how many were published. Fails if one could not be."""
        self._over.set()
        self.join()
        assert self.fault is None, repr(self.fault)
        return self.count

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def goes_on(self, more: int = 20) -> None:
        """Returns once it has published more."""
        before, end = self.count, time.monotonic() + DEADLINE
        while self.fault is None and self.count < before + more:
            assert time.monotonic() < end, "nothing is published"
            time.sleep(0.005)
        assert self.fault is None, repr(self.fault)


def query(fields: Iterable[tuple[str, str]]) -> str:
    """The target of a response with these header fields (srv_held.py)."""
    return "/fields?" + urllib.parse.urlencode(list(fields))
