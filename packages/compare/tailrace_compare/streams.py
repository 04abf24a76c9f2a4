"""Thousands of streams of server-sent events with one block per second each. The arrival time of each block is compared
with its time stamp.

python -m tailrace_compare.streams 127.0.0.1 8000 /events 10000 10

Server and client read the same clock, CLOCK_MONOTONIC. The seconds of a
stream count from the moment at which its request was served. Clients connect at a constant rate, RAMP per second, which
alone spreads their blocks over the second. If a server is late with some, their blocks coincide from then on.

It is a separate process of normal priority on the client's core, with one system call per block and one per batch. It
polls its sockets at least every TICK seconds, so that the longest time between two polls (`pause`) is the maximum delay
that it can have caused itself. No figure is more accurate than that.

It prints "ready" once every stream has had its first block, or has waited for RAMP_SECONDS; measures when a line of
input comes; and prints one line of JSON.
"""

from __future__ import annotations

import errno
import gc
import json
import re
import select
import socket
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from tailrace_compare import machine
from tailrace_compare.results import percentile

BLOCK = re.compile(rb"data: (\d+) (\d+)\n\n")
# New streams in a second, and how long until all must have come.
RAMP = 1000
RAMP_SECONDS = 30.0
# A block that is not here so long after its second is over is missed: one that never came, and one that a server which
# was busy made late, of which the age says nothing.
GRACE_SECONDS = 0.1
TICK = 0.001
# Source addresses of the loopback network share the connections, or one address could run out of ports.
EACH_ADDRESS = 2000


@dataclass
class Seen:
    """The result: streams open at the end; blocks, and the number missed; delay of the blocks in milliseconds, maximum
    and 99th percentile; the client's longest pause in milliseconds, and its share of a core."""

    open: int = 0
    blocks: int = 0
    missed: int = 0
    worst: float = 0.0
    p99: float = 0.0
    pause: float = 0.0
    processor: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)

    def fault(self, kind: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1


def missed(seconds: float) -> int:
    """The number of blocks that were due while a stream was silent for this long."""
    return max(0, int(seconds - GRACE_SECONDS))


class Stream:
    """One stream: `tail` is the start of an incomplete block."""

    __slots__ = ("asked", "connection", "last", "number", "served", "tail")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.asked = False
        self.served = False
        self.number = -1
        self.last = 0
        self.tail = b""

    def take(self, data: bytes) -> list[int]:
        """The stamps of the blocks that are complete with this data. Raises ValueError when one is out of order."""
        data = self.tail + data
        stamps = []
        end = 0
        for found in BLOCK.finditer(data):
            if int(found[1]) != self.number + 1:
                raise ValueError("out of order")
            self.number += 1
            stamps.append(int(found[2]))
            end = found.end()
        # At most a head or a chunk's size and an unfinished block.
        self.tail = data[end:] if len(data) - end < 4096 else b""
        return stamps


class Streams:
    """The client."""

    def __init__(self, address: tuple[str, int], path: str, count: int) -> None:
        self.address = address
        self.request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode()
        self.count = count
        self.came = 0
        self.served = 0
        self.seen = Seen()
        self.poll = select.epoll()
        self.streams: dict[int, Stream] = {}
        # Nanoseconds from made to arrived of every block in the window, and when the last look was.
        self.ages = array("q")
        self.looked = 0
        self.pause = 0
        self.measures = False

    def start(self) -> None:
        """One more."""
        connection = socket.socket()
        connection.setblocking(False)
        connection.bind((f"127.0.0.{2 + self.came // EACH_ADDRESS}", 0))
        self.came += 1
        if connection.connect_ex(self.address) not in (0, errno.EINPROGRESS):
            self.seen.fault("connect")
            connection.close()
            return
        self.streams[connection.fileno()] = Stream(connection)
        self.poll.register(connection, select.EPOLLOUT)

    def turn(self, seconds: float) -> None:
        """Waits for up to this long, and reads what has arrived."""
        events = self.poll.poll(seconds, 4096)
        if self.measures:
            now = time.perf_counter_ns()
            self.pause = max(self.pause, now - self.looked)
            self.looked = now
        for descriptor, _ in events:
            stream = self.streams[descriptor]
            try:
                if stream.asked:
                    data = stream.connection.recv(65536)
                    self.take(stream, data, time.perf_counter_ns())
                else:
                    stream.connection.send(self.request)
                    stream.asked = True
                    self.poll.modify(descriptor, select.EPOLLIN)
            except (OSError, ValueError) as error:
                self.seen.fault(str(error) if isinstance(error, ValueError) else type(error).__name__)
                # A closed descriptor leaves the epoll by itself.
                del self.streams[descriptor]
                stream.connection.close()

    def take(self, stream: Stream, data: bytes, now: int) -> None:
        """Raises ConnectionResetError or ValueError when the stream is over."""
        if not data:
            raise ConnectionResetError
        stamps = stream.take(data)
        if not stamps:
            return
        if not stream.served:
            stream.served = True
            self.served += 1
        if self.measures:
            for stamp in stamps:
                self.ages.append(now - stamp)
            # What came with others filled its place, late as it was.
            self.seen.missed += max(0, missed((now - stream.last) / 1e9) - len(stamps) + 1)
        stream.last = now

    def ramp(self) -> None:
        """Runs until all clients have connected and been served."""
        begun = time.perf_counter()
        while self.served < len(self.streams) or self.came < self.count:
            now = time.perf_counter()
            if now - begun > RAMP_SECONDS:
                break
            while self.came < min(self.count, (now - begun) * RAMP):
                self.start()
            self.turn(TICK)

    def rest(self, orders: int) -> None:
        """Continues without measuring until the descriptor is readable."""
        while not select.select([orders], [], [], 0)[0]:
            self.turn(10 * TICK)

    def measure(self, seconds: float) -> Seen:
        """Call once."""
        used = time.process_time()
        self.looked = begun = time.perf_counter_ns()
        for stream in self.streams.values():
            # What was due before is not counted.
            stream.last = max(stream.last, begun - 1_000_000_000)
        self.measures = True
        end = begun + int(seconds * 1e9)
        while self.looked < end:
            self.turn(TICK)
        seen = self.seen
        seen.missed += sum(missed((self.looked - stream.last) / 1e9) for stream in self.streams.values())
        seen.open = sum(stream.served for stream in self.streams.values())
        seen.blocks = len(self.ages)
        if self.ages:
            seen.worst, seen.p99 = max(self.ages) / 1e6, percentile(self.ages, 0.99) / 1e6
        seen.pause = self.pause / 1e6
        seen.processor = (time.process_time() - used) / ((self.looked - begun) / 1e9)
        return seen


def run(address: tuple[str, int], path: str, count: int, seconds: float, report: Callable[[str], None]) -> None:
    streams = Streams(address, path, count)
    streams.ramp()
    # What is here now stays, and a collection would be a pause.
    gc.collect()
    gc.freeze()
    gc.disable()
    report("ready")
    streams.rest(sys.stdin.fileno())
    report(json.dumps(asdict(streams.measure(seconds))))


def main() -> None:
    host, port, path, count, seconds = sys.argv[1:]
    machine.take_load_core()
    run((host, int(port)), path, int(count), float(seconds), lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
