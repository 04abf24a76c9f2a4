"""`tailrace.socketio.Manager`: what one worker emits reaches the Socket.IO clients of all workers, without Redis.

For python-socketio, and so Flask-SocketIO, in its modes "threading" and "gevent". Messages go through the process that
holds connections. It does not store them, so messages that are emitted while it is replaced may be lost. With
`--publish-bus`, they also reach the workers of other servers.

When a worker drains, the manager ends its sessions, so that their clients open others elsewhere, and waits for event
handlers that run.

Names that python-socketio and python-engineio do not document: `_trigger_event` of the server of Socket.IO, `sockets`
and `_cors_headers` of that of Engine.IO, and the members of what is in `sockets`. They are the same in python-socketio
5.11.0, 5.11.4, 5.12.1, 5.13.0, 5.14.3, 5.15.0, 5.16.0, 5.17.0 and 5.18.1, and in python-engineio 4.9.0, 4.10.1,
4.11.2, 4.12.3, 4.13.0 and 4.15.1.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import parse_qs

from engineio.packet import NOOP, Packet  # type: ignore[import-untyped]
from socketio.pubsub_manager import PubSubManager  # type: ignore[import-untyped]

from tailrace.errors import PublishError
from tailrace.logs import log
from tailrace.publishing import publish_items
from tailrace.system import draining, holding

_LISTEN: Final = b"L"
# How long the process that holds connections may take to accept a listener (seconds).
_TIMEOUT: Final = 10.0
# Messages that no manager has sent are logged once in this time (seconds).
_LOG_PAUSE: Final = 60.0
# The pause before listening again, after the connection to that process has ended (seconds).
_PAUSE: Final = 0.2
# When the worker drains: how long a client that long-polls gets what is queued for it, how long it may take to poll
# again and so to learn that its session ends, and how long what it has sent until then may take to arrive (seconds).
_TO_DELIVER: Final = 1.0
_TO_POLL: Final = 5.0
_TO_ARRIVE: Final = 1.0
# How often sessions that end are looked at (seconds).
_LOOK: Final = 0.05
# As often handlers may run on after the end of the sessions before that is logged.
_PATIENCE: Final = 20
_REFUSED: Final = "400 BAD REQUEST"


class Manager(PubSubManager):  # type: ignore[misc]
    """The client manager of a Socket.IO server: `SocketIO(app, client_manager=Manager())`.

    channel: use a different channel for each application on a server, so that they do not receive each other's
    messages. write_only: only emit, for programs outside a server, such as task queues. to: the address of
    `--publish-bind` to which these programs publish; see `tailrace.publish`. If a message cannot be published, an error
    is logged, and only clients of the same worker get the message. With write_only, PublishError is raised.
    """

    name = "tailrace"

    def __init__(
        self, channel: str = "socketio", *, write_only: bool = False, logger: Any = None, to: str | None = None
    ) -> None:
        super().__init__(channel=channel, write_only=write_only, logger=logger)
        self._to = to
        self._logged = -_LOG_PAUSE
        # One object for each handler that runs.
        self._running: set[object] = set()

    def set_server(self, server: Any) -> None:
        """The Socket.IO server calls it when it is made."""
        super().set_server(server)
        # python-socketio runs each handler of an event in a daemon thread. All handlers are called by this method; a
        # version without it has handlers that are not waited for.
        if trigger := getattr(server, "_trigger_event", None):

            def counted(*args: Any, **options: Any) -> Any:
                self._running.add(token := object())
                try:
                    return trigger(*args, **options)
                finally:
                    self._running.discard(token)

            server._trigger_event = counted

    def initialize(self) -> None:
        """Starts listening. The Socket.IO server calls it when its first client connects."""
        # With --preload, all workers are copies of one process.
        self.host_id = uuid.uuid4().hex
        super().initialize()
        if not self.write_only:
            self.server.start_background_task(self._end_sessions)

    def _publish(self, data: Any) -> None:
        item = {"channel": self.channel, "formats": {"raw": {"content": json.dumps(data, separators=(",", ":"))}}}
        if not self.write_only and self._to is None and not holding.known():
            # There are no other workers.
            return
        try:
            publish_items([item], to=self._to)
        except PublishError as error:
            if self.write_only:
                raise
            log.logger.error("Socket.IO: clients of other workers did not get a message: %s", error)

    def _listen(self) -> Iterator[dict[str, Any]]:
        fault = ""
        while True:
            try:
                with self._connection() as holder:
                    if fault:
                        log.logger.warning(
                            "Socket.IO: this worker receives messages from other workers again, but may have missed "
                            "some (%s)",
                            fault,
                        )
                    fault = ""
                    yield from filter(None, map(self._decoded, _messages(holder)))
                fault = "the process that holds connections exited"
            except OSError as error:
                if not fault:
                    log.logger.error(
                        "Socket.IO: this worker cannot receive messages from other workers: %s; trying again", error
                    )
                fault = str(error)
            self.server.sleep(_PAUSE)

    def _end_sessions(self) -> None:
        """Ends the sessions of this worker when it drains. The worker waits for that.

        Of several servers in this process at once, one is followed, and all sessions end when it drains.
        """
        ended: set[int] = set()
        while True:
            drains, number = self._follow(ended)
            try:
                drains.recv(1)
                _End(self.server.eio, self._running).run()
            finally:
                draining.leave(drains)
            # The application may be served again in this process.
            ended.add(number)

    def _follow(self, ended: set[int]) -> tuple[socket.socket, int]:
        """`draining.follow`, when there is such a server."""
        is_logged = False
        while True:
            try:
                if found := draining.follow(ended):
                    return found
            except OSError as error:
                if not is_logged:
                    log.logger.error(
                        "Socket.IO: this worker cannot end its sessions when it stops: %s; trying again", error
                    )
                is_logged = True
            self.server.sleep(_PAUSE)

    def _decoded(self, message: bytes) -> dict[str, Any] | None:
        """A message from a manager. python-socketio before 5.14 would unpickle bytes (CVE-2025-61765)."""
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(message), dict):
                return found
        if time.monotonic() - self._logged >= _LOG_PAUSE:
            self._logged = time.monotonic()
            log.logger.warning(
                "Socket.IO: skipped a message on channel %r that was not sent by a Manager", self.channel
            )
        return None

    @contextlib.contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """A connection on which messages arrive. Waits for a server in this process. Raises OSError."""
        while not (known := holding.known()):
            self.server.sleep(_PAUSE)
        channel = self.channel.encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
            holder.settimeout(_TIMEOUT)
            holder.connect(b"\0" + known[0].holder_address)
            holder.sendall(struct.pack("<I", len(channel) + 1) + _LISTEN + channel)
            if holder.recv(1) != b"+":
                raise ConnectionResetError("the process that holds connections exited")
            holder.settimeout(None)
            yield holder


class _End:
    """The end of all sessions of an Engine.IO server.

    A client that long-polls learns of it by an error in answer to a poll, and connects again. What it has sent until
    then is handled before the session is closed. An Engine.IO close packet would not do: python-socketio's client does
    not connect again after one.
    """

    def __init__(self, server: Any, running: set[object]) -> None:
        self._server, self._running = server, running
        self._handle: Callable[..., Iterable[bytes]] = server.handle_request
        self._begun = time.monotonic()
        # The sessions that end, and when their client was last told so.
        self._told: dict[str, float | None] = {}
        # Those that are closed, or are being closed.
        self._closed: set[str] = set()

    def run(self) -> None:
        """Returns when all sessions are closed, and no handler runs."""
        self._server.handle_request = self._answer
        try:
            quiet, waits = 0, 0
            # Twice: the handler of the last message may be about to begin.
            while quiet < 2:
                is_open, count = self._look(), len(self._running)
                quiet = 0 if is_open or count else quiet + 1
                if count and not is_open:
                    waits += 1
                    if waits == _PATIENCE:
                        log.logger.info("Socket.IO: this worker waits for event handlers that run (%d)", count)
                self._server.sleep(_LOOK)
        finally:
            self._server.handle_request = self._handle
            # Requests have got an error since they were closed, and engineio removes them only at times.
            for sid, session in self._server.sockets.copy().items():
                if session.closed:
                    self._server.sockets.pop(sid, None)

    def _look(self) -> bool:
        """Does what has to be done now; false: all sessions are closed."""
        sessions = self._server.sockets.copy()
        for sid, session in sessions.items():
            # The WebSocket of an upgraded one has ended with the worker's first step of draining.
            if sid not in self._told and session.connected and not session.upgraded:
                self._told[sid] = None
                # It ends a poll that waits, as before an upgrade.
                session.queue.put(Packet(NOOP))
            if sid not in self._closed and self._is_over(sid):
                # There may be no thread for it now. The others do not wait for its handler.
                with contextlib.suppress(RuntimeError):
                    self._server.start_background_task(session.close, wait=False, abort=True)
                    self._closed.add(sid)
        return not all(session.closed for session in sessions.values())

    def _is_over(self, sid: str) -> bool:
        told, last = self._told.get(sid), self._begun + _TO_POLL
        # What it sends tells it again.
        return time.monotonic() >= (last if told is None else min(told, last) + _TO_ARRIVE)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Instead of `engineio.Server.handle_request`."""
        sid = parse_qs(environ.get("QUERY_STRING", "")).get("sid", [""])[0]
        session, method = self._server.sockets.get(sid), environ["REQUEST_METHOD"]
        is_poll = method == "GET" and "HTTP_UPGRADE" not in environ
        if sid not in self._told or session is None or not (is_poll or method == "POST"):
            return self._handle(environ, start_response)
        is_told = self._told[sid] is not None
        if session.closed:
            return self._refuse(environ, start_response)
        if method == "POST":
            if not is_told:
                return self._handle(environ, start_response)
            # It was not listening. What it sends is handled, and the error tells it again.
            self._told[sid] = time.monotonic()
            return self._handle(environ, lambda status, *rest: start_response(_REFUSED, *rest))
        if not is_told and not session.queue.empty() and time.monotonic() < self._begun + _TO_DELIVER:
            # Such as acknowledgements.
            return self._handle(environ, start_response)
        self._told[sid] = time.monotonic()
        return self._refuse(environ, start_response)

    def _refuse(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        cors: Callable[[dict[str, Any]], list[tuple[str, str]]] = getattr(
            self._server, "_cors_headers", lambda environ: []
        )
        start_response(_REFUSED, [("Content-Type", "text/plain"), *cors(environ)])
        return [b"The worker of this session is stopping."]


def _messages(holder: socket.socket) -> Iterator[bytes]:
    """The messages that arrive, until the connection ends."""
    buffer = bytearray()
    while received := holder.recv(1 << 16):
        buffer += received
        while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "little")):
            message = bytes(buffer[4:end])
            del buffer[:end]
            if message[:1] == _LISTEN:
                yield message[1:]
