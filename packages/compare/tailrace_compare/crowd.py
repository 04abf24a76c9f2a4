"""A crowd of slow clients in its own process. Each client reads, or uploads, at a fixed pace.

python -m tailrace_compare.crowd read 127.0.0.1 8000 /list 1000 100000 10000000
python -m tailrace_compare.crowd upload 127.0.0.1 8000 /upload 500 20000 1000000
python -m tailrace_compare.crowd both 127.0.0.1 8000 /list,/upload 1000 50000 10000000,1000000

It shares the client's core with the measured client, but represents clients on other machines. So it uses little of
that core: two system calls per client and half second, with bytes dropped in the kernel without a copy (MSG_TRUNC). It
runs at the lowest priority, so that wrk runs first and the crowd in the pauses of wrk.

It prints "ready" once every client has been served or has waited for RAMP_SECONDS. For each line of input, it prints
one line of JSON with its counts so far, including its own processor time. It exits at the end of its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from tailrace_compare import machine
from tailrace_compare.answer import Answer

# Each client has its turn so often, with what its pace has come to since.
TURN_SECONDS = 0.5
RAMP_SECONDS = 5.0
# Of one client in one turn: a client that was kept waiting does not make up for it at a gallop.
MAX_TURNS = 2
PIECE = bytes(1 << 20)
# As on Ethernet.
SEGMENT = 1448


@dataclass
class Seen:
    """The result of a crowd: bytes moved, responses completed, clients served (their response has begun, or their
    upload is under way), clients lost during service, faults by name, and seconds of processor time."""

    moved: int = 0
    answers: int = 0
    served: int = 0
    lost: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    processor: float = 0.0

    def fault(self, kind: str, was_served: bool) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.lost += was_served


def allowance(pace: float, since: float, now: float) -> int:
    """Bytes that a client may move now when it had its last turn at `since`."""
    return int(pace * min(now - since, MAX_TURNS * TURN_SECONDS))


class Client:
    """A client of the crowd: a non-blocking connection, and the bytes to send before its turns count."""

    def __init__(self, connection: socket.socket, seen: Seen, pace: float, size: int, head: str) -> None:
        self.connection = connection
        self.seen = seen
        self.pace = pace
        self.size = size
        self.left = size
        self.head = head.encode()
        self.asked = False
        self.served = False
        self.since = 0.0

    def turn(self, now: float) -> bool:
        """Moves the bytes that are due; false when this client is done. Raises OSError; BlockingIOError if the server
        is not ready."""
        if not self.asked:
            self.connection.send(self.head)
            self.asked = True
            self.since = now
            return True
        # Goes on also when the server does not: what it did not take or give in time is not made up for.
        since, self.since = self.since, now
        return self.move(min(allowance(self.pace, since, now), self.left))

    def move(self, most: int) -> bool:
        """Moves up to this many bytes of the body. Returns and raises as `turn`."""
        raise NotImplementedError

    def is_served(self) -> None:
        if not self.served:
            self.served = True
            self.seen.served += 1


class Reader(Client):
    """Takes one response."""

    def __init__(self, connection: socket.socket, seen: Seen, path: str, pace: float, size: int) -> None:
        super().__init__(connection, seen, pace, size, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        self.buffer = bytearray(allowance(pace, 0, MAX_TURNS * TURN_SECONDS))

    def move(self, most: int) -> bool:
        if not self.served:
            # Where the head ends does not matter to a pace.
            head = self.connection.recv(1024)
            if head and head[9:12] != b"200":
                self.seen.fault(f"status {head[9:12].decode('latin-1')}", was_served=False)
                return False
            if not head:
                raise ConnectionResetError
            self.is_served()
            return True
        got = self.connection.recv_into(self.buffer, most, socket.MSG_TRUNC)
        if not got:
            raise ConnectionResetError
        self.seen.moved += got
        self.left -= got
        self.seen.answers += not self.left
        return self.left > 0


class Uploader(Client):
    """Sends a body, reads the response, and repeats. `ahead`: the fraction of its first body that it sends at once, so
    that the bodies of a crowd do not all end together."""

    def __init__(
        self, connection: socket.socket, seen: Seen, path: str, pace: float, size: int, ahead: float = 0.0
    ) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
        super().__init__(connection, seen, pace, size, head)
        self.at_once = int(size * ahead)
        self.answer = Answer()

    def move(self, most: int) -> bool:
        if not self.left:
            return self.look()
        most = max(most, self.at_once)
        sent = self.connection.send(memoryview(PIECE)[:most])
        self.at_once = max(0, self.at_once - sent)
        self.left -= sent
        self.seen.moved += sent
        if not self.at_once:
            self.is_served()
        return True

    def look(self) -> bool:
        """Whether the response has arrived. It must be the number of bytes."""
        data = self.connection.recv(4096)
        done = self.answer.feed(data) if data else self.answer.end()
        if not done:
            if not data:
                raise ConnectionResetError
            return True
        if self.answer.status != 200 or str(self.size).encode() not in self.answer.body:
            self.seen.fault("wrong response", was_served=True)
            return False
        self.seen.answers += 1
        if self.answer.closes:
            return False
        self.answer, self.left, self.asked = Answer(), self.size, False
        return True


class Crowd:
    """Clients that take turns, spread evenly over TURN_SECONDS."""

    def __init__(self, clients: list[Client], seen: Seen) -> None:
        self.clients: list[Client | None] = list(clients)
        self.seen = seen

    def turn(self, index: int, now: float) -> None:
        """The turn of one client, if it is still here."""
        client = self.clients[index]
        if client is None:
            return
        try:
            stays = client.turn(now)
        except BlockingIOError:
            return
        except OSError as error:
            self.seen.fault(type(error).__name__, client.served)
            stays = False
        if not stays:
            client.connection.close()
            self.clients[index] = None

    def is_served(self) -> bool:
        """True once every client that is still here has been served."""
        return all(client is None or client.served for client in self.clients)

    def run(self, orders: int, report: Callable[[str], None]) -> None:
        """Turns until the descriptor `orders` ends."""
        begun = time.perf_counter()
        step = TURN_SECONDS / len(self.clients)
        ready = False
        turns = 0
        while True:
            due = begun + turns * step
            wait = due - time.perf_counter()
            # Under a busy core late is the rule, and the input must be seen all the same, now and then.
            if (wait > 0 or turns % 50 == 0) and select.select([orders], [], [], max(0.0, wait))[0]:
                if not os.read(orders, 4096):
                    return
                self.seen.processor = time.process_time()
                report(json.dumps(asdict(self.seen)))
            if time.perf_counter() < due:
                continue
            self.turn(turns % len(self.clients), time.perf_counter())
            turns += 1
            if not ready and turns % len(self.clients) == 0:
                ready = self.is_served() or time.perf_counter() - begun > RAMP_SECONDS
                if ready:
                    report("ready")


def connect(address: tuple[str, int], receive: int) -> socket.socket:
    """A connection in progress, with a receive buffer of the given size, if any. The first send shows whether it has
    been established."""
    connection = socket.socket()
    connection.setblocking(False)
    # The loopback's segments of 64 KB do not go with windows of that size: the sender would wait for room for a whole
    # one, and the pace be the window's and not the client's.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    if receive:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    with contextlib.suppress(BlockingIOError):
        connection.connect(address)
    return connection


def main() -> None:
    what, host, port, path, count, pace, size = sys.argv[1:]
    machine.take_load_core()
    os.nice(19)
    seen = Seen()
    clients: list[Client] = []
    kinds = ("read", "upload") if what == "both" else (what,)
    paths, sizes = path.split(","), [int(each) for each in size.split(",")]
    for index in range(int(count)):
        kind = kinds[index % len(kinds)]
        at, each = paths[index % len(paths)], sizes[index % len(sizes)]
        # What the kernel takes in for a reader is no burden of the server's: some turns' worth. With less, the pace
        # would be that of the kernel's window probes.
        receive = int(4 * float(pace) * TURN_SECONDS) if kind == "read" else 0
        connection = connect((host, int(port)), receive)
        if kind == "read":
            clients.append(Reader(connection, seen, at, float(pace), each))
        else:
            clients.append(Uploader(connection, seen, at, float(pace), each, index / int(count)))
    Crowd(clients, seen).run(sys.stdin.fileno(), lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
