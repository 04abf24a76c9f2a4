"""More requests than a server can answer: sent at a steady pace whatever becomes of them, each on a connection of its
own for as long as it is under way. Connections are kept and used again."""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.compare.answer import Answer

REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
# How long after the last request an answer is waited for.
PATIENCE = 2.0


@dataclass
class Flood:
    """What became of the requests: seconds from request to answer by status, and faults by kind."""

    times: dict[int, list[float]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def count(self, status: int) -> int:
        return len(self.times.get(status, []))

    def percentile(self, status: int, part: float) -> float | None:
        """Seconds within which this part of the answers with a status came; None when there were none."""
        ordered = sorted(self.times.get(status, []))
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def run(connect: Callable[[], socket.socket], rate: float, seconds: float) -> Flood:
    """`rate` requests each second. Raises OSError when no connection can be opened."""
    flood = Flood()
    poll = select.epoll()
    idle: list[socket.socket] = []
    under_way: dict[int, tuple[socket.socket, Answer, float]] = {}
    total = int(rate * seconds)
    sent = 0
    begin = time.perf_counter()
    last = begin + seconds + PATIENCE
    while (sent < total or under_way) and (now := time.perf_counter()) < last:
        while sent < min(total, (now - begin) * rate):
            connection = idle.pop() if idle else None
            if connection is None:
                connection = connect()
                poll.register(connection, select.EPOLLIN)
            under_way[connection.fileno()] = (connection, Answer(), time.perf_counter())
            connection.sendall(REQUEST)
            sent += 1
        due = begin + (sent + 1) / rate - time.perf_counter() if sent < total else last - now
        for descriptor, _ in poll.poll(max(0.0, min(due, 0.1))):
            take(flood, poll, idle, under_way, descriptor)
    flood.faults["unanswered"] += len(under_way)
    for connection in (*idle, *(connection for connection, _, _ in under_way.values())):
        connection.close()
    poll.close()
    flood.faults = +flood.faults
    return flood


def take(
    flood: Flood,
    poll: select.epoll,
    idle: list[socket.socket],
    under_way: dict[int, tuple[socket.socket, Answer, float]],
    descriptor: int,
) -> None:
    """What has come on one connection."""
    if descriptor not in under_way:
        # It was idle, and the server has closed it.
        for connection in [one for one in idle if one.fileno() == descriptor]:
            idle.remove(connection)
            connection.close()
        return
    connection, answer, since = under_way[descriptor]
    try:
        data = connection.recv(65536)
    except OSError:
        data = b""
    done = answer.feed(data) if data else False
    if done:
        flood.times.setdefault(answer.status, []).append(time.perf_counter() - since)
    elif not data:
        flood.faults["broken"] += 1
    if done or not data:
        del under_way[descriptor]
        if done and not answer.closes:
            idle.append(connection)
        else:
            poll.unregister(connection)
            connection.close()
