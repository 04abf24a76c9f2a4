"""A client for large responses that reads only their heads. Bodies are dropped in the kernel without a copy
(MSG_TRUNC), so that the server uses its whole core before the client does.

wrk reads a response of 688 KB in 86 reads of 8 KiB, with an ioctl after each. That fills a core at a rate that several
servers reach. This client needs some tens of calls, and the result states how much of its core it used.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from tailrace_compare.answer import Answer

HEAD = 16384
PIECE = 1 << 20
# With no answer for so long, the server has stopped.
PATIENCE = 2.0


@dataclass
class Drained:
    """Whole responses in `seconds`, those that were broken or not a 200, and the client's processor time."""

    answers: int = 0
    errors: int = 0
    seconds: float = 0.0
    processor: float = 0.0


class Drain:
    """One non-blocking connection: a request, the response, the next request. Call `take` when it is readable.
    closes: the response announces the end of the connection."""

    def __init__(self, connection: socket.socket, request: bytes) -> None:
        self.connection = connection
        self.request = request
        self.head = b""
        self.left = 0
        self.closes = False
        self.space = bytearray(PIECE)

    def ask(self) -> None:
        """Raises OSError."""
        self.head = b""
        self.connection.send(self.request)

    def take(self) -> bool:
        """Reads what is available; true when a response has ended. Raises OSError: BlockingIOError if there is no more
        data, ConnectionResetError if it was not a response."""
        if not self.left:
            self.left = self.begin()
        while self.left:
            got = self.connection.recv_into(self.space, min(PIECE, self.left), socket.MSG_TRUNC)
            if not got:
                raise ConnectionResetError("connection closed mid-response")
            self.left -= got
        return True

    def begin(self) -> int:
        """Reads the head; returns the number of bytes that remain."""
        while True:
            data = self.connection.recv(HEAD)
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end >= 0:
                break
            if not data:
                raise ConnectionResetError("connection closed before a response")
        answer = Answer()
        answer.read_head(self.head[:end])
        if answer.status != 200 or answer.length is None:
            raise ConnectionResetError("not a 200 response with Content-Length")
        self.closes = answer.closes
        left = answer.length - (len(self.head) - end - 4)
        if left < 0:
            raise ConnectionResetError("more bytes than the response")
        return left


def run(connect: Callable[[], socket.socket], path: str, connections: int, seconds: float) -> Drained:
    """Reads responses on this many connections for this long. Raises OSError if it cannot connect."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    drained = Drained()
    poll = select.epoll()
    under_way: dict[int, Drain] = {}

    def start() -> None:
        connection = connect()
        connection.setblocking(False)
        drain = under_way[connection.fileno()] = Drain(connection, request)
        poll.register(connection, select.EPOLLIN)
        drain.ask()

    try:
        for _ in range(connections):
            start()
        begun, used = time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) - begun < seconds:
            ready = poll.poll(PATIENCE)
            if not ready:
                drained.errors += len(under_way)
                break
            for descriptor, _ in ready:
                drain = under_way[descriptor]
                try:
                    if not drain.take():
                        continue
                    drained.answers += 1
                    if not drain.closes:
                        drain.ask()
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    drained.errors += 1
                # A closed descriptor leaves the epoll by itself.
                under_way.pop(descriptor).connection.close()
                start()
        drained.seconds, drained.processor = now - begun, time.process_time() - used
    finally:
        for drain in under_way.values():
            drain.connection.close()
        poll.close()
    return drained
