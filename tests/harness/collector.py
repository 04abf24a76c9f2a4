"""A collector of OpenTelemetry: takes spans by OTLP over HTTP, and keeps them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

DEADLINE = 20.0


@dataclass(frozen=True)
class Span:
    """ids as hexadecimal digits; start, end: nanoseconds since 1970; resource: the attributes of what has made it."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    is_error: bool
    resource: dict[str, Any]


class Collector:
    """As a context manager it takes spans at `url`. status, fields, body: what it answers; endless: for ever."""

    def __init__(
        self, *, status: int = 200, fields: Mapping[str, str] | None = None, body: bytes = b"", endless: bool = False
    ) -> None:
        self.status = status
        # Cleared: it answers nobody, and forgets what it has received meanwhile.
        self.answers = threading.Event()
        self.answers.set()
        # Set once it has received something that it does not answer.
        self.holds = threading.Event()
        self._spans: list[Span] = []
        self.sent = 0
        collector, answer = self, body

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not collector.answers.is_set():
                    collector.holds.set()
                    collector.answers.wait()
                elif collector.status == 200 and self.path == "/v1/traces":
                    collector._spans.extend(_spans(body))
                self.send_response(collector.status)
                for name, value in (fields or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(answer)
                    while endless:
                        self.wfile.write(answer)
                        collector.sent += len(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Collector:  # noqa: PYI034 - typing.Self is of Python 3.11
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()

    def spans(self, number: int = 0) -> list[Span]:
        """The spans so far; waits until there are so many."""
        until = time.monotonic() + DEADLINE
        while len(self._spans) < number:
            if time.monotonic() > until:
                pytest.fail(f"{len(self._spans)} spans instead of {number}: {[each.name for each in self._spans]}")
            time.sleep(0.02)
        return list(self._spans)

    def of(self, name: str, number: int = 4) -> dict[str, Span]:
        """The spans of the only trace whose request has this name, by their names; waits for `number` spans in all."""
        found = self.spans(number)
        (request,) = [span for span in found if span.name == name]
        return {span.name: span for span in found if span.trace == request.trace}


def _spans(body: bytes) -> list[Span]:
    found = []
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                times = (span.start_time_unix_nano, span.end_time_unix_nano)
                attributes = _attributes(span.attributes)
                found.append(Span(*ids, span.name, span.kind, *times, attributes, span.status.code == 2, resource))
    return found


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
