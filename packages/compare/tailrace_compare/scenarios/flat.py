"""The memory growth of the server during a response larger than memory, to a client that reads as fast as possible."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from tailrace_compare import checks
from tailrace_compare.checks import Expected
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import files

MAX_SECONDS = 15.0
SAMPLE_SECONDS = 0.05
PIECE = 1 << 20


@dataclass(frozen=True)
class Flat(Scenario):
    """The peak memory during the response minus the memory before it. A first such response is started and abandoned
    before, so that one-time allocations do not count."""

    size: int = files.FLAT_BYTES

    def load(self, server: Server, ask: Ask) -> Sample:
        take(server, self.path, 64 * PIECE)
        time.sleep(0.2)
        before = server.memory()
        begun = time.perf_counter()
        taken, most = take(server, self.path, self.size)
        seconds = time.perf_counter() - begun
        most = max(most, server.memory())
        if taken < PIECE:
            return Sample({}, 1, f"{taken:,} bytes")
        note = f"{taken:,} of {self.size:,} bytes in {seconds:.1f} s"
        return Sample({self.metrics[0].key: (most - before) / 1e6}, int(taken < self.size), note)

    def answers(self, server: Server) -> tuple[Expected, ...]:
        return (checks.of_application(self.app, self.path, most=PIECE),)

    def reproduce(self) -> str:
        return f"tailrace compare --only {self.name}  # /proc/PID/smaps_rollup before and while it is read"


def take(server: Server, path: str, size: int) -> tuple[int, int]:
    """Reads up to `size` bytes of a response, dropped in the kernel, for up to MAX_SECONDS. Returns the number of body
    bytes and the peak memory of the server. Raises OSError."""
    most = taken = 0
    begun = time.perf_counter()
    look = begun + SAMPLE_SECONDS
    space = bytearray(PIECE)
    with server.connect(MAX_SECONDS) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(4096)
            if not piece:
                return 0, 0
            head += piece
        taken = len(head) - head.index(b"\r\n\r\n") - 4
        while taken < size:
            try:
                got = connection.recv_into(space, min(PIECE, size - taken), socket.MSG_TRUNC)
            except OSError:
                break
            if not got:
                break
            taken += got
            now = time.perf_counter()
            if now > look:
                most = max(most, server.memory())
                look = time.perf_counter() + SAMPLE_SECONDS
                if now - begun > MAX_SECONDS:
                    break
    return taken, most
