"""What the agents of APM services send to, in place of the service: it answers as the service does, and keeps all."""

from __future__ import annotations

import contextlib
import gzip
import json
import socketserver
import ssl
import struct
import threading
import zlib
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .encrypted import Authority


@dataclass(frozen=True)
class Sent:
    """One request. body: decompressed."""

    path: str
    query: dict[str, str]
    kind: str
    body: bytes

    def lines(self) -> list[Any]:
        """The lines of JSON of its body."""
        return [json.loads(line) for line in self.body.splitlines() if line.strip()]


# What New Relic answers to the first two requests of an agent; to the others, nothing.
_NEW_RELIC = {
    "preconnect": {"redirect_host": "localhost"},
    "connect": {"agent_run_id": "1", "collect_errors": True, "collect_error_events": True, "apdex_t": 0.5},
}


class Intake:
    """As a context manager it takes requests at `url`. authority: of its certificate, if it speaks HTTPS."""

    def __init__(self, authority: Authority | None = None) -> None:
        self.sent: list[Sent] = []
        intake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                # An agent may close its connection in any way.
                with contextlib.suppress(ConnectionError):
                    super().handle()

            def do_POST(self) -> None:
                url = urlsplit(self.path)
                query = dict(parse_qsl(url.query))
                body = _decompressed(self._body(), self.headers.get("Content-Encoding", ""))
                intake.sent.append(Sent(url.path, query, self.headers.get("Content-Type", ""), body))
                answer: dict[str, Any] = {"version": "8.15.0"}
                if "agent_listener" in url.path:
                    answer = {"return_value": _NEW_RELIC.get(query["method"])}
                content = json.dumps(answer).encode()
                self.send_response(202 if url.path.startswith("/intake/") else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST  # noqa: N815 - the names that BaseHTTPRequestHandler looks for

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                chunks = b""
                while size := int(self.rfile.readline(), 16):
                    chunks += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return chunks

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority.chain, authority.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http{'s' * (authority is not None)}://127.0.0.1:{self.port}"

    def __enter__(self) -> Intake:  # noqa: PYI034 - typing.Self is of Python 3.11
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class ScoutAgent:
    """In place of the program to which Scout's library sends: messages of JSON, each after its length. commands: those
    of all messages."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []
        agent = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    while size := self.rfile.read(4):
                        message = json.loads(self.rfile.read(struct.unpack(">I", size)[0]))
                        agent.commands += message.get("BatchCommand", {}).get("commands", [message])
                        answer = b'{"Register":{"result":"Success"}}'
                        self.wfile.write(struct.pack(">I", len(answer)) + answer)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"tcp://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScoutAgent:  # noqa: PYI034 - typing.Self is of Python 3.11
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _decompressed(body: bytes, coding: str) -> bytes:
    if coding == "gzip":
        return gzip.decompress(body)
    return zlib.decompress(body) if coding == "deflate" else body
