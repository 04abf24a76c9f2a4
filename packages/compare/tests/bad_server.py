"""A small WSGI server on sockets and threads, with a fault that its command line chooses.

python packages/compare/tests/bad_server.py served.shapes:pong 127.0.0.1:8000 --fault truncate

Without a fault it is correct, and slow. `--fault` may be given more than once. SIGTTIN starts a further process.
"""

import argparse
import contextlib
import io
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from importlib import import_module
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults

# More connections than this at once, or more than this in all, are load. A busy machine may never have four new ones at
# once.
LOAD = 3
MANY = 300
HELD_SECONDS = 0.4
WASTED = 4 << 20
WASTED_PROCESS = 16 << 20
SLOW_START_SECONDS = 1.5

FAULTS = {
    "byte-by-byte": "sends everything one byte at a time",
    "delay-all": "holds all blocks until the last one",
    "delay-each": "holds each block for a while",
    "drop-fields": "leaves a header field of the application out",
    "drop-under-load": "drops connections under load",
    "errors-under-load": "answers 500 under load",
    "ignores-sigttin": "starts no further process",
    "keeps-open": "announces to close, and does not",
    "memory-per-connection": "wastes memory for each connection",
    "memory-per-process": "wastes memory in each process",
    "never-answers": "never answers but to /ready",
    "one-at-a-time": "serves one request at a time",
    "serves-few": "serves one connection, and lets others wait until it ends",
    "slow-start": "takes its time before it listens",
    "split-head": "sends each header field by itself",
    "stops-under-load": "does not answer under load",
    "truncate": "sends less than the body",
    "wrong-bytes": "changes a byte of the body",
}


class Server:
    """The listener, and a thread for each connection."""

    def __init__(self, application: Any, listener: socket.socket, faults: set[str]) -> None:
        self.application = application
        self.listener = listener
        self.faults = faults
        self.connections = 0
        self.accepted = 0
        self.changed = threading.Lock()
        self.turn = threading.Lock() if "one-at-a-time" in faults else contextlib.nullcontext()
        self.room = threading.Semaphore() if "serves-few" in faults else contextlib.nullcontext()
        self.wasted = waste(WASTED_PROCESS) if "memory-per-process" in faults else b""

    def run(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with self.changed:
            self.connections += 1
            self.accepted += 1
        wasted = waste(WASTED) if "memory-per-connection" in self.faults else b""
        try:
            with connection, self.room, contextlib.suppress(OSError):
                if connection.family != socket.AF_UNIX:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream = connection.makefile("rb")
                while self.one(connection, stream):
                    pass
        finally:
            del wasted
            with self.changed:
                self.connections -= 1

    def one(self, connection: socket.socket, stream: io.BufferedReader) -> bool:
        """One request; whether the connection stays. Raises OSError."""
        line = stream.readline().split()
        if len(line) != 3:
            return False
        fields = {}
        while (field := stream.readline().strip()) and b":" in field:
            name, _, value = field.partition(b":")
            fields[name.decode().lower()] = value.strip().decode()
        body = stream.read(int(fields.get("content-length", 0)))
        path, _, query = line[1].decode().partition("?")
        spared = path == "/ready"
        if not spared and "never-answers" in self.faults:
            time.sleep(60)
        if (self.connections > LOAD or self.accepted > MANY) and not spared:
            if "drop-under-load" in self.faults:
                return False
            if "stops-under-load" in self.faults:
                time.sleep(60)
            if "errors-under-load" in self.faults:
                connection.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
                return True
        environ: dict[str, Any] = {
            "REQUEST_METHOD": line[0].decode(),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": fields.get("content-type", ""),
            "HTTP_HOST": fields.get("host", ""),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.input": io.BytesIO(body),
            "wsgi.file_wrapper": FileWrapper,
        }
        setup_testing_defaults(environ)
        closes = fields.get("connection", "").lower() == "close"
        with self.turn:
            Answer(self, connection, closes, set() if spared else self.faults).give(environ)
        if "keeps-open" in self.faults and not spared:
            return True
        return not closes


class Answer:
    """One answer, with its faults."""

    def __init__(self, server: Server, connection: socket.socket, closes: bool, faults: set[str]) -> None:
        self.server = server
        self.connection = connection
        self.closes = closes
        self.faults = faults
        self.status = ""
        self.fields: list[tuple[str, str]] = []

    def start_response(self, status: str, fields: list[tuple[str, str]], exc_info: Any = None) -> None:
        self.status, self.fields = status, list(fields)

    def give(self, environ: dict[str, Any]) -> None:
        result = self.server.application(environ, self.start_response)
        try:
            blocks = [result] if isinstance(result, bytes) else self.delayed(result)
            chunked = not any(name.lower() == "content-length" for name, _ in self.fields)
            self.send_head(chunked)
            for block in self.spoilt(blocks):
                if not block:
                    continue
                self.send(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
            if chunked and "truncate" not in self.faults:
                self.send(b"0\r\n\r\n")
        finally:
            if close := getattr(result, "close", None):
                close()
        if "truncate" in self.faults:
            raise ConnectionError

    def delayed(self, blocks: Iterable[bytes]) -> Iterable[bytes]:
        if "delay-all" in self.faults:
            return [b"".join(blocks)]
        return blocks

    def spoilt(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        first = True
        for block in blocks:
            if "delay-each" in self.faults:
                time.sleep(HELD_SECONDS)
            if first and "wrong-bytes" in self.faults:
                block = bytes([block[0] ^ 1]) + block[1:]
            if first and "truncate" in self.faults:
                block = block[1:]
            first = False
            yield block

    def send_head(self, chunked: bool) -> None:
        fields = list(self.fields)
        if "drop-fields" in self.faults:
            del fields[0]
        if chunked:
            fields.append(("Transfer-Encoding", "chunked"))
        fields.append(("Date", formatdate(usegmt=True)))
        if self.closes or "keeps-open" in self.faults:
            fields.append(("Connection", "close"))
        lines = [f"HTTP/1.1 {self.status}", *(f"{name}: {value}" for name, value in fields), ""]
        parts = [f"{line}\r\n".encode("latin-1") for line in lines]
        for part in parts if "split-head" in self.faults else [b"".join(parts)]:
            self.send(part)

    def send(self, data: bytes) -> None:
        if "byte-by-byte" not in self.faults:
            self.connection.sendall(data)
            return
        for byte in data:
            self.connection.sendall(bytes([byte]))


def waste(size: int) -> bytes:
    """Memory that is written, so that the kernel gives it."""
    return b"w" * size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("application", help="as module:name")
    parser.add_argument("address", help="as host:port or unix:path")
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS))
    asked = parser.parse_args()
    faults = set(asked.fault)
    if "slow-start" in faults:
        time.sleep(SLOW_START_SECONDS)
    module, _, name = asked.application.partition(":")
    application = getattr(import_module(module), name)
    if asked.address.startswith("unix:"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(asked.address.removeprefix("unix:"))
        listener.listen(1024)
    else:
        host, _, port = asked.address.rpartition(":")
        listener = socket.create_server((host, int(port)), backlog=1024)

    def another(*_: object) -> None:
        if "ignores-sigttin" not in faults and not os.fork():
            Server(application, listener, faults).run()

    signal.signal(signal.SIGTTIN, another)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    Server(application, listener, faults).run()


if __name__ == "__main__":
    main()
