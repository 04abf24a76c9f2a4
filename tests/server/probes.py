"""What the tests of whole servers share: questions to the process and to its application."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.addresses import Address
from harness.server import Server
from harness.uploads import chunk
from harness.wire import Client, Response

DEADLINE = 30.0


def eventually(probe: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """The first true answer of `probe`, asked again and again; fails after a generous while."""
    until = time.monotonic() + deadline
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > until:
            pytest.fail(f"{what}: not within {deadline:g} s, the last answer was {answer!r}")
        time.sleep(0.01)


def at_once(*calls: Callable[[], Any]) -> None:
    """Makes the calls at the same time, each in a thread; returns when all have returned, and fails with the first that
    has failed."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for each in [pool.submit(call) for call in calls]:
            each.result()


@contextlib.contextmanager
def meanwhile(look: Callable[[], Any]) -> Iterator[list[Any]]:
    """Calls `look` again and again beside the block; what it has returned, in order. At the end, fails if it has."""
    seen: list[Any] = []
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            seen.append(look())

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(go_on)
        try:
            yield seen
        finally:
            is_over.set()
        looking.result()


def told(server: Server, target: str) -> Any:
    """What the application answers to a question, from JSON."""
    response = server.get(target)
    assert response.status == 200, response
    return json.loads(response.body)


def request(target: str, *fields: str, version: str = "1.1") -> bytes:
    """A GET request that keeps the connection."""
    return "\r\n".join([f"GET {target} HTTP/{version}", "Host: test", *fields, "", ""]).encode("latin-1")


def descriptors(server: Server) -> int:
    """Open descriptors of the process, without temporary files that are kept for the next use."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir())) - _sizes_of_temporary_files(server).count(0)


def deleted_files(server: Server) -> int:
    """Temporary files of the process that have bytes in them."""
    return sum(size > 0 for size in _sizes_of_temporary_files(server))


def _sizes_of_temporary_files(server: Server) -> list[int]:
    folder = Path(f"/proc/{server.pid}/fd")
    # The harness may give the server such files for its output.
    outputs = {(folder / number).stat().st_ino for number in ("1", "2")}
    sizes = []
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(entry.readlink()).endswith(" (deleted)") and (found := entry.stat()).st_ino not in outputs:
                sizes.append(found.st_size)
    return sizes


def receive_queues(server: Server) -> list[int]:
    """Of each TCP connection to the server, the bytes that the kernel has received and the server has not read."""
    port, established = server.address.port, 1
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        int(queues.partition(":")[2], 16)
        for _, local, _, state, queues, *_ in lines
        if int(local.rpartition(":")[2], 16) == port and int(state, 16) == established
    ]


def is_held(client: Client) -> bool:
    """Whether the server still has its end of a TCP connection; one that it has closed belongs to no process."""
    ours, theirs = client.sock.getsockname()[1], client.sock.getpeername()[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports = [int(fields[place].rpartition(":")[2], 16) for place in (1, 2)]
        if ports == [theirs, ours]:
            return fields[9] != "0"
    return False


def resident(server: Server) -> int:
    """Bytes of the process in memory."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def peak(server: Server) -> int:
    """The most bytes that the process has had in memory."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


PATTERN = bytes(range(256)) * 4096


def pattern(size: int, start: int = 0) -> bytes:
    """`size` bytes from `start` on of the endless pattern that srv_shapes.py sends."""
    start %= 256
    return (PATTERN * (1 + (start + size) // len(PATTERN)))[start : start + size]


def digest(data: bytes) -> str:
    """For comparisons whose failure shall not print megabytes."""
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()}"


def open_gate(server: Server, gate: str) -> None:
    """Lets those go on who wait there."""
    told(server, f"/open?gate={gate}")


def await_waiting(server: Server, gate: str, count: int) -> None:
    """Returns once `count` requests wait at a gate."""
    eventually(lambda: told(server, f"/seen?gate={gate}") == count, f"{count} requests at the gate {gate}")


def run_at_once(server: Server, gate: str, count: int) -> None:
    """So many requests are in the application at once, the last of which asks for the others: if there are as many
    application threads, none of them is held."""
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(asking(server, f"/wait?gate={gate}")) for _ in range(count - 1)]
        await_waiting(server, gate, count - 1)
        open_gate(server, gate)
        assert [client.response().status for client in waiting] == [200] * (count - 1)


def in_pieces(client: Client, data: bytes, numbers: random.Random) -> None:
    """Sends it in pieces of any size, until the server closes."""
    at = 0
    while at < len(data):
        step = numbers.choice([1, 3, 50, 1000, 30_000, 200_000])
        if not client.send(data[at : at + step]):
            return
        at += step


def chunked(body: bytes, numbers: random.Random) -> bytes:
    """The body in chunks of any size, and its end."""
    coded, at = [], 0
    while at < len(body):
        coded.append(chunk(piece := body[at : at + numbers.randint(1, 40_000)]))
        at += len(piece)
    return b"".join(coded) + chunk(b"")


def await_read(server: Server) -> None:
    """Returns once all that was sent before has been read: a request that cannot be parsed, on a later connection, is
    answered without the application."""
    with server.client() as bad:
        assert bad.ask(b"\0\r\n\r\n").status == 400


def fill(server: Server, client: Client, data: Callable[[int], bytes], most: int) -> int:
    """Sends what the kernel takes, which is all that the server does not read; returns the number of bytes.

    data: the bytes from an offset on. Fails at `most` bytes. Full is a connection of which the server has read nothing
    before it answered a later request on another connection.
    """
    client.sock.setblocking(False)
    sent, before = 0, None
    while True:
        with contextlib.suppress(BlockingIOError):
            while sent < most:
                sent += client.sock.send(data(sent))
        assert sent < most, "much of it was taken though nobody read"
        # The kernel may take nothing for a while although some was read.
        now = sent, receive_queues(server)
        if now == before:
            return sent
        before = now
        await_read(server)


def asking(server: Server, target: str, *fields: str, deadline: float = 30.0) -> Client:
    """A connection on which a request has been sent."""
    client = server.client(deadline)
    client.send(request(target, *fields))
    return client


def waiting(server: Server, directory: Path, name: str = "entered") -> Client:
    """A request that is in srv_processes.py, until the file `gate` exists in this directory."""
    return in_flight(server, f"/wait?gate={directory}/gate", directory / name)


def in_flight(server: Server, target: str, entered: Path) -> Client:
    """A request that srv_processes.py has begun, which it says by this file."""
    client = asking(server, f"{target}&entered={entered}")
    eventually(entered.exists, "the request in flight")
    return client


class Narrow(Address):
    """A way to the server on which the kernels take in little: what a client does not read waits in the server."""

    def connect_plain(self, deadline: float = 10.0) -> socket.socket:
        """A connected socket with a small window."""
        sock = socket.socket()
        sock.settimeout(deadline)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        # The loopback's segments are as long as this window; its sender would wait for room for a whole one.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
        sock.connect((self.host, self.port))
        return sock


def reading(server: Server, target: str, *fields: str) -> Client:
    """A client that has asked and takes nothing."""
    client = Client(Narrow(server.address.host, server.address.port, is_encrypted=server.address.is_encrypted), 30.0)
    client.send(request(target, *fields))
    return client


def taken(client: Client, head: Response) -> str:
    """The digest of the body that belongs to a head, read piece by piece."""
    got, size = hashlib.sha256(), 0
    length = int(head["content-length"]) if "content-length" in head else None
    while length is None or size < length:
        piece = client.chunk(head) if length is None else client.read(min(length - size, 1 << 18))
        head.body = b""
        if not piece:
            assert length is None, f"the body ends after {size} of {length} bytes"
            break
        got.update(piece)
        size += len(piece)
    return f"{size} bytes {got.hexdigest()}"


def ready(server: Server) -> list[int]:
    """The workers that have told they are ready, in order: their process numbers."""
    return [int(pid) for pid in re.findall(r"worker \d+ \(pid (\d+)\) ready in", server.log)]


def await_ready(server: Server, count: int) -> list[int]:
    """Them, once there are so many."""
    eventually(lambda: len(ready(server)) >= count, f"{count} workers ready:\n{server.log}")
    return ready(server)


def is_stopped(pid: int) -> bool:
    """True when each of its threads has been stopped."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}
