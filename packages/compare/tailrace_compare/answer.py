"""Finds the end of an HTTP/1.1 response while it arrives; for clients with thousands of connections."""

from __future__ import annotations

import socket


class Garbled(OSError):
    """The received bytes are not a response."""


class Answer:
    """One response. `feed` it until `complete`; `end` tells it that the server has closed. Raises Garbled."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.complete = False
        self.status = 0
        self.closes = False
        self.body_at = 0
        self.length: int | None = None
        self.chunked = False

    def feed(self, data: bytes) -> bool:
        """Takes bytes; returns whether the response is complete."""
        self.received += data
        if not self.body_at:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return False
            self.read_head(bytes(self.received[:end]))
            self.body_at = end + 4
        if self.length is not None:
            self.complete = len(self.received) - self.body_at >= self.length
        elif self.chunked:
            self.complete = self.received.endswith(b"\r\n0\r\n\r\n")
        return self.complete

    def end(self) -> bool:
        """The server closed the connection, which completes a response without another end."""
        self.closes = True
        self.complete = self.complete or (bool(self.body_at) and self.length is None and not self.chunked)
        return self.complete

    @property
    def body(self) -> bytes:
        """The bytes after the head, as they came."""
        return bytes(self.received[self.body_at :])

    def read_head(self, head: bytes) -> None:
        try:
            self.read_lines(head.lower().split(b"\r\n"))
        except (ValueError, IndexError):
            raise Garbled(f"not a response: {head[:60]!r}") from None

    def read_lines(self, lines: list[bytes]) -> None:
        """Raises ValueError or IndexError where a number is missing."""
        self.status = int(lines[0].split()[1])
        self.closes = lines[0].startswith(b"http/1.0")
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name == b"content-length":
                self.length = int(value)
            elif name == b"transfer-encoding":
                self.chunked = b"chunked" in value
            elif name == b"connection":
                self.closes = b"close" in value or (self.closes and b"keep-alive" not in value)


def receive(connection: socket.socket) -> Answer:
    """The next response. Raises OSError, also if the connection ends before the response."""
    answer = Answer()
    while not answer.complete:
        data = connection.recv(1 << 20)
        if not data and not answer.end():
            raise ConnectionResetError("connection closed mid-response")
        answer.feed(data)
    return answer
