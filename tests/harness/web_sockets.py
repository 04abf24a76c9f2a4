"""A client of WebSockets: wsproto speaks the protocol, and a test may send whatever else it wants."""

from __future__ import annotations

from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Request, TextMessage
from wsproto.extensions import PerMessageDeflate

from .addresses import Address
from .wire import Client


class WebSocketClient:
    """An open WebSocket, which accepts compressed messages, but for `offers=False`.

    fields: more of its request. parameters: of `permessage-deflate`. received: how many bytes have come.
    """

    def __init__(
        self,
        address: Address,
        target: str = "/ws/a",
        *fields: tuple[str, str],
        offers: bool = True,
        **parameters: Any,
    ) -> None:
        self.received = 0
        self.extension = PerMessageDeflate(**parameters)
        self.client = Client(address, 30.0)
        self.connection = WSConnection(ConnectionType.CLIENT)
        extensions = [self.extension] if offers else []
        more = [(name.encode(), value.encode()) for name, value in fields]
        self.client.send(self.connection.send(Request("test", target, extensions=extensions, extra_headers=more)))
        assert isinstance(self.event(), AcceptConnection)

    def __enter__(self) -> WebSocketClient:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def event(self) -> Any:
        """The next event of the server; at the end of the connection, CloseConnection with the code 1006."""
        while (found := next(self.connection.events(), None)) is None:
            data = self.client.sock.recv(1 << 16)
            self.received += len(data)
            self.connection.receive_data(data or None)
        return found

    def message(self) -> str | bytes:
        """The next whole message."""
        parts = [self.event()]
        while not parts[-1].message_finished:
            parts.append(self.event())
        whole: str | bytes = type(parts[0].data)().join(part.data for part in parts)
        return whole

    def say(self, *parts: str | bytes) -> None:
        """Sends a message, each part in a frame of its own."""
        for number, part in enumerate(parts, 1):
            kind: Any = TextMessage if isinstance(part, str) else BytesMessage
            self.client.send(self.connection.send(kind(data=part, message_finished=number == len(parts))))

    def echoes(self, message: str | bytes) -> None:
        """Sends a message to an application that sends it back."""
        self.say(message)
        assert (found := self.message()) == message, found
