"""What the status process answers: a small WSGI application. Any of its threads.

`/events` is a response of its own kind, which ends after some time; all others are complete at once.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from tailrace._tailrace import Scoreboard, __version__
from tailrace.stacks import process
from tailrace.status import held, hosts, metrics, snapshot, threads
from tailrace.status.document import document
from tailrace.status.feed import MAX_VIEWERS, Feed, Viewer
from tailrace.status.html import Html
from tailrace.status.memory import Memory, Readings
from tailrace.status.snapshot import Snapshot
from tailrace.status.state import SharedState
from tailrace.system.addresses import Address

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_TEXT: Final = "text/plain; charset=utf-8"
_EVENTS: Final = "text/event-stream"

_Answer = tuple[str, str, "bytes | Viewer"]


def _accepted(environ: WSGIEnvironment) -> str:
    """The format that the client asks for."""
    accepted = environ.get("HTTP_ACCEPT", "")
    return "text" if "text/plain" in accepted and "json" not in accepted else "json"


def _named(pids: list[int]) -> str:
    return ", ".join(map(str, pids)) or "there is none at present"


class Pages:
    """The application."""

    def __init__(
        self, shared: SharedState, board: Scoreboard, bound: Address | None = None, *, is_encrypted: bool = False
    ) -> None:
        """bound: the address of --status. is_encrypted: clients compare its name with a certificate."""
        self._shared, self._board, self._bound, self._is_encrypted = shared, board, bound, is_encrypted
        self._readings = Readings()
        self._threads = threads.Reader()
        self._held = held.Reader()
        self._html = Html()
        self.feed = Feed(self._look)
        self._pages: dict[str, Callable[[WSGIEnvironment], _Answer]] = {
            "/": self._live,
            "/health": self._health,
            "/ready": self._ready,
            "/status.json": self._status,
            "/stacks": self._stacks,
            "/metrics": self._metrics,
            "/events": self._events,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers one request."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        page = self._pages.get(path)
        host = environ.get("HTTP_HOST")
        more: list[tuple[str, str]] = []
        body: bytes | Viewer
        if host is not None and not self._is_encrypted and not hosts.is_answered(host, self._bound):
            status, kind, body = "403 Forbidden", _TEXT, hosts.refusal(host).encode()
        elif page is None:
            status, kind, body = "404 Not Found", _TEXT, (", ".join(self._pages) + "\n").encode()
        elif method not in ("GET", "HEAD"):
            status, kind, body = "405 Method Not Allowed", _TEXT, b"only GET and HEAD\n"
            more = [("Allow", "GET, HEAD")]
        elif path == "/events" and method == "HEAD":
            status, kind, body = "200 OK", _EVENTS, b""
        else:
            try:
                status, kind, body = page(environ)
            except OSError as error:
                status, kind, body = "503 Service Unavailable", _TEXT, f"{error}\n".encode()
            more = self._html.fields if path == "/" else []
        fields = [("Content-Type", kind), ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), *more]
        if isinstance(body, Viewer):
            # A proxy such as nginx would collect the events.
            start_response(status, [*fields, ("X-Accel-Buffering", "no")])
            return body
        start_response(status, [*fields, ("Content-Length", str(len(body)))])
        return [body]

    def _live(self, _environ: WSGIEnvironment) -> _Answer:
        return "200 OK", "text/html; charset=utf-8", self._html.body

    def _events(self, _environ: WSGIEnvironment) -> _Answer:
        if (viewer := self.feed.viewer()) is None:
            return (
                "503 Service Unavailable",
                _TEXT,
                f"{MAX_VIEWERS} viewers are connected, which is the limit\n".encode(),
            )
        return "200 OK", _EVENTS, viewer

    def _health(self, _environ: WSGIEnvironment) -> _Answer:
        return "200 OK", _TEXT, b"ok\n"

    def _ready(self, _environ: WSGIEnvironment) -> _Answer:
        if why := self._take().not_ready:
            return "503 Service Unavailable", _TEXT, f"{why}\n".encode()
        return "200 OK", _TEXT, b"ready\n"

    def _status(self, _environ: WSGIEnvironment) -> _Answer:
        taken = self._take(with_requests=True)
        found = document(taken, self._memory(taken), __version__, self._held.read(taken.state))
        return "200 OK", "application/json", json.dumps(found, indent=1).encode() + b"\n"

    def _stacks(self, environ: WSGIEnvironment) -> _Answer:
        query = dict(urllib.parse.parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        wanted, pid = query.get("format", _accepted(environ)), query.get("pid")
        if wanted not in ("json", "text"):
            return "400 Bad Request", _TEXT, b"format is json or text, as in /stacks?format=text\n"
        taken = self._take(with_requests=True)
        known = [each.pid for each in taken.workers]
        if pid is not None and pid not in map(str, known):
            return "404 Not Found", _TEXT, f"pid must be the process id of a worker: {_named(known)}\n".encode()
        try:
            workers = self._threads.read(taken, lambda: self._take(with_requests=True), int(pid) if pid else None)
        except threads.Busy:
            return "503 Service Unavailable", _TEXT, b"the stacks are being read for another request; ask again\n"
        if wanted == "text":
            return "200 OK", _TEXT, process.text(workers).encode(errors="replace")
        return "200 OK", "application/json", json.dumps({"workers": workers}, indent=1).encode() + b"\n"

    def _metrics(self, _environ: WSGIEnvironment) -> _Answer:
        taken = self._take()
        return (
            "200 OK",
            metrics.CONTENT_TYPE,
            metrics.exposition(taken, self._memory(taken), __version__, self._board, self._held.read(taken.state)),
        )

    def _look(self, with_requests: bool) -> dict[str, Any]:
        """For the feed: the document, without what would delay a worker."""
        taken = self._take(with_requests=with_requests)
        memory = self._memory(taken, with_pss=False)
        return document(taken, memory, __version__, self._held.read(taken.state))

    def _take(self, *, with_requests: bool = False) -> Snapshot:
        return snapshot.take(self._shared, self._board, time.monotonic, with_requests=with_requests)

    def _memory(self, taken: Snapshot, *, with_pss: bool = True) -> dict[int, Memory]:
        return self._readings.read([worker.pid for worker in taken.workers], time.monotonic(), with_pss=with_pss)
