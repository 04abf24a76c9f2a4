"""`tailrace.socketio.Manager`: what one worker emits reaches the Socket.IO clients of all workers, without a message queue.

For python-socketio, and so Flask-SocketIO, in its modes "threading" and "gevent". Messages go through the process that
holds connections. They are not kept: what is emitted while that process is replaced may be lost.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import uuid
from collections.abc import Iterator
from typing import Any, Final

from socketio.pubsub_manager import PubSubManager

from tailrace.errors import PublishError
from tailrace.publishing import publish_items
from tailrace.system import holding

_LISTEN: Final = b"L"
# How long the process that holds connections may take to accept a listener (seconds).
_TIMEOUT: Final = 10.0
# The pause before listening again, after the connection to that process has ended (seconds).
_PAUSE: Final = 0.2


class Manager(PubSubManager):  # type: ignore[misc]
    """The client manager of a Socket.IO server: `SocketIO(app, client_manager=Manager())`.

    channel: applications on one server that must not hear each other have different ones. write_only: only emits, for
    programs outside a server, such as task queues. to: where these publish, an address of `--publish-bind`; see
    `tailrace.publish`. An emit that cannot be published reaches the clients of its own worker alone, and is logged; with
    write_only, it raises PublishError.
    """

    name = "tailrace"

    def __init__(
        self, channel: str = "socketio", *, write_only: bool = False, logger: Any = None, to: str | None = None
    ) -> None:
        super().__init__(channel=channel, write_only=write_only, logger=logger)
        self._to = to

    def initialize(self) -> None:
        """Begins to listen. The server calls it when its first client connects."""
        # With --preload, all workers are copies of one process.
        self.host_id = uuid.uuid4().hex
        super().initialize()

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
            self._get_logger().error("Socket.IO clients of other workers are not sent %s: %s", data.get("method"), error)

    def _listen(self) -> Iterator[bytes]:
        fault = ""
        while True:
            try:
                with self._connection() as holder:
                    if fault:
                        self._get_logger().warning("listening to the other workers again; messages may have been lost")
                    fault = ""
                    yield from _messages(holder)
                fault = "the process that holds connections has ended"
            except OSError as error:
                if not fault:
                    self._get_logger().error("cannot listen to the other workers, trying again: %s", error)
                fault = str(error)
            self.server.sleep(_PAUSE)

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
                raise ConnectionResetError("the process that holds connections has ended")
            holder.settimeout(None)
            yield holder


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
