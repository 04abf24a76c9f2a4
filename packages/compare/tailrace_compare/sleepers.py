"""Many clients that each send a request, wait for the response, and repeat: one loop, with keep-alive if the server
supports it.

They connect at a constant rate, RAMP per second, so that thousands of them do not overflow the accept queue. The kernel
would then retry a second later.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from dataclasses import dataclass, field

from tailrace_compare.answer import Answer

REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
# A client that waits longer than this for an answer gives up in the count, as wrk does.
PATIENCE = 2.0
RAMP = 4000


@dataclass
class Counted:
    """Responses (start and end of each), and errors by kind."""

    answers: list[tuple[float, float]] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    def error(self, kind: str, count: int = 1) -> None:
        if count:
            self.errors[kind] = self.errors.get(kind, 0) + count

    def take(self, client: Client) -> None:
        """Records the response of a client."""
        if client.answer.status == 200:
            self.answers.append((client.sent, time.perf_counter()))
        else:
            self.error("status")

    def rate(self, begin: float, end: float) -> float:
        """Responses per second in the window. A response that crosses an edge of the window counts in proportion to its
        time inside; otherwise, a sleep of a twentieth of the window would cause steps of 5%. If responses take as long
        as the window, those that end inside are counted."""
        inside = [(sent, done) for sent, done in self.answers if done > begin and sent < end]
        if not inside:
            return 0.0
        if sum(done - sent for sent, done in inside) / len(inside) > (end - begin) / 4:
            return sum(begin < done <= end for _, done in inside) / (end - begin)
        return sum((min(done, end) - max(sent, begin)) / (done - sent) for sent, done in inside) / (end - begin)

    def success(self) -> float:
        """The fraction of requests that were answered with 200."""
        tried = len(self.answers) + sum(self.errors.values())
        return len(self.answers) / tried if tried else 0.0

    def times(self, begin: float) -> list[float]:
        """The times in seconds of the responses after a moment."""
        return [done - sent for sent, done in self.answers if done > begin]


class Client:
    """One client: its connection, and the response that it waits for."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.connection = socket.socket()
        self.answer = Answer()
        self.sent = 0.0

    def connect(self, poll: select.epoll) -> None:
        self.connection.close()
        self.connection = socket.socket()
        self.connection.setblocking(False)
        code = self.connection.connect_ex(self.address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, "connect")
        poll.register(self.connection, select.EPOLLOUT)
        self.sent = time.perf_counter()

    def ask(self) -> None:
        self.answer = Answer()
        self.sent = time.perf_counter()
        self.connection.send(REQUEST)


def run(address: tuple[str, int], clients: int, warm: float, window: float) -> tuple[float, Counted]:
    """Responses per second for `window` seconds, once all clients have connected and `warm` seconds have passed."""
    counted = Counted()
    poll = select.epoll()
    by_descriptor: dict[int, Client] = {}

    def start(client: Client) -> None:
        by_descriptor.pop(client.connection.fileno(), None)
        try:
            client.connect(poll)
        except OSError:
            counted.error("connect")
            return
        by_descriptor[client.connection.fileno()] = client

    came = 0
    first = time.perf_counter()
    begin = first + clients / RAMP + warm
    end = begin + window
    # Afterwards only what was under way is waited for, not longer than a sleep or two.
    last = end + window / 4
    while (now := time.perf_counter()) < last and (by_descriptor or came < clients):
        while came < min(clients, 1 + (now - first) * RAMP):
            start(Client(address))
            came += 1
        patience = last - now if came == clients else 1 / RAMP
        for descriptor, event in poll.poll(max(0.001, patience), 4096):
            client = by_descriptor.get(descriptor)
            if client is None:
                continue
            try:
                if event & select.EPOLLOUT:
                    poll.modify(descriptor, select.EPOLLIN)
                    client.ask()
                    continue
                data = client.connection.recv(65536)
                done = client.answer.feed(data) if data else client.answer.end()
                if done:
                    counted.take(client)
                    if not client.answer.closes:
                        client.ask()
                        continue
                elif data:
                    continue
                else:
                    counted.error("closed")
            except OSError:
                counted.error("reset")
            start(client)
        if sum(counted.errors.values()) > 20 * clients + 1000:
            break
    counted.error("unanswered", sum(now - client.sent > PATIENCE for client in by_descriptor.values()))
    for client in by_descriptor.values():
        client.connection.close()
    poll.close()
    return counted.rate(begin, end), counted
