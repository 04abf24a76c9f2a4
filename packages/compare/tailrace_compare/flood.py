"""An open load: requests at fixed times, regardless of the responses.

A response time counts from the planned time of its request, so that waiting for a connection, or for this client, is
not hidden. No call blocks: a connection that is not accepted delays only its own request. Each request in progress has
its own connection. Connections are kept and reused, or are new for each request, as with httperf.
"""

from __future__ import annotations

import errno
import math
import random
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tailrace_compare.answer import Answer

PATIENCE = 2.0


@dataclass
class Flood:
    """The result: seconds from the planned time to the end of the response, by status; faults by kind; seconds from the
    planned time until each request was sent."""

    times: dict[int, list[float]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    late: list[float] = field(default_factory=list)

    def count(self, status: int) -> int:
        return len(self.times.get(status, []))

    def percentile(self, status: int, part: float) -> float | None:
        """Percentile, in seconds, of the responses with a status; None if there were none."""
        times = self.times.get(status)
        return quantile(times, part) if times else None


def quantile(values: Sequence[float], part: float) -> float:
    """The value that this part of them does not exceed. Of at least one value."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def steady(rate: float, seconds: float) -> list[float]:
    """Evenly spaced times of requests, in seconds from the start."""
    return [number / rate for number in range(int(rate * seconds))]


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Random times of requests (Poisson process), `rate` per second on average."""
    chance = random.Random(seed)
    times, at = [], chance.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += chance.expovariate(rate)
    return times


def request(path: str = "/", kept: bool = True) -> bytes:
    close = "" if kept else "Connection: close\r\n"
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{close}\r\n".encode()


class Pending:
    """A request in progress: its connection and number, and its response so far."""

    __slots__ = ("answer", "connection", "number")

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.connection = connection
        self.number = number
        self.answer = Answer()


class Load:
    """The client. `clock` is an argument for the tests."""

    def __init__(
        self,
        address: tuple[str, int],
        times: Sequence[float],
        path: str = "/",
        kept: bool = True,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.address = address
        self.times = times
        self.request = request(path, kept)
        self.kept = kept
        self.patience = patience
        self.clock = clock
        self.begun = 0.0
        self.flood = Flood()
        self.poll = select.epoll()
        self.idle: dict[int, socket.socket] = {}
        self.under_way: dict[int, Pending] = {}
        # In the order of their times, and so of their time-outs.
        self.sent: deque[tuple[int, int]] = deque()

    def run(self) -> Flood:
        self.begun = self.clock()
        number = 0
        while number < len(self.times) or self.under_way:
            now = self.clock() - self.begun
            while number < len(self.times) and self.times[number] <= now:
                self.flood.late.append(now - self.times[number])
                self.ask(number)
                number += 1
                now = self.clock() - self.begun
            self.expire(now)
            events = self.poll.poll(0)
            due = [self.times[number]] if number < len(self.times) else []
            due += [self.times[self.sent[0][1]] + self.patience] if self.sent else []
            if not events and due:
                # A poll's own time-out is of whole milliseconds.
                select.select([self.poll], [], [], max(0.0, min(due) - now))
            for descriptor, event in events:
                self.take(descriptor, event)
        for connection in self.idle.values():
            connection.close()
        self.poll.close()
        return self.flood

    def ask(self, number: int) -> None:
        descriptor, connection = self.idle.popitem() if self.idle else (-1, None)
        if connection is None:
            connection = socket.socket()
            connection.setblocking(False)
            code = connection.connect_ex(self.address)
            if code not in (0, errno.EINPROGRESS):
                self.flood.faults["connect"] += 1
                connection.close()
                return
            descriptor = connection.fileno()
            self.poll.register(connection, select.EPOLLOUT)
        else:
            self.poll.modify(descriptor, select.EPOLLOUT)
        self.under_way[descriptor] = Pending(connection, number)
        self.sent.append((descriptor, number))

    def expire(self, now: float) -> None:
        """Abandons the requests that have waited too long."""
        while self.sent:
            descriptor, number = self.sent[0]
            pending = self.under_way.get(descriptor)
            if pending is not None and pending.number == number:
                if self.times[number] + self.patience > now:
                    return
                self.end(descriptor, "timeouts")
            self.sent.popleft()

    def end(self, descriptor: int, fault: str = "") -> None:
        """Closing a descriptor removes it from the epoll."""
        self.under_way.pop(descriptor).connection.close()
        if fault:
            self.flood.faults[fault] += 1

    def take(self, descriptor: int, event: int) -> None:
        """Handles an event on one connection."""
        pending = self.under_way.get(descriptor)
        if pending is None:
            # It was idle, and the server has closed it.
            if idle := self.idle.pop(descriptor, None):
                idle.close()
            return
        try:
            if event & select.EPOLLOUT:
                pending.connection.send(self.request)
                self.poll.modify(descriptor, select.EPOLLIN)
                return
            data = pending.connection.recv(1 << 18)
            done = pending.answer.feed(data) if data else pending.answer.end()
        except OSError:
            self.end(descriptor, "broken")
            return
        if done:
            taken = self.clock() - self.begun - self.times[pending.number]
            self.flood.times.setdefault(pending.answer.status, []).append(taken)
            if self.kept and data and not pending.answer.closes:
                del self.under_way[descriptor]
                self.idle[descriptor] = pending.connection
            else:
                self.end(descriptor)
        elif not data:
            self.end(descriptor, "broken")


def run(
    address: tuple[str, int], times: Sequence[float], path: str = "/", kept: bool = True, patience: float = PATIENCE
) -> Flood:
    """Sends a request at each of these times."""
    return Load(address, times, path, kept, patience).run()
