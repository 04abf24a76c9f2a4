"""Responses of random rhythms: bursts of quick blocks with pauses between, each block stamped with when it was made.

The application's side (`Burst`, `bursts`, `made`) and the client's (`take`, `arrivals`). Both read the same clock,
CLOCK_MONOTONIC, also in different processes.

The client is on the load's core and never sleeps: it asks its socket again and again, notes what came and when, and
looks into it afterwards. On the server's core it would have to wait until the generator's burst is over, which is the
scheduler's doing; and the 0.1 ms that a virtual machine takes to wake a core from another are no server's. `pause` is
the longest time from one look to the next: so late it can have been itself.
"""

from __future__ import annotations

import random
import socket
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

BURSTS = 10
SHORTEST, LONGEST = 0.02, 0.2
# Of one burst: more takes its time in the kernel's buffers whoever sends it.
MAX_BYTES = 256 * 1024
# A letter, a length, a stamp: the least that a block holds.
HEAD = 26
LAST, QUICK = b"L", b"Q"
FILL = b"." * 65536
PATIENCE = 10.0


@dataclass(frozen=True)
class Burst:
    """The sizes of blocks made one after the other, and the seconds of sleep behind them."""

    sizes: tuple[int, ...]
    pause: float


def bursts(seed: int) -> list[Burst]:
    """Of one response, the same for the same seed: from one block to some thousand, from tiny ones to those that travel
    by reference."""
    chance = random.Random(seed)
    made = []
    for _ in range(BURSTS):
        count = int(10 ** chance.uniform(0, 3.5))
        largest = int(10 ** chance.uniform(1.5, 4.8))
        sizes = [chance.randint(HEAD, max(HEAD, largest)) for _ in range(count)]
        fit = max(1, sum(total <= MAX_BYTES for total in accumulate(sizes)))
        made.append(Burst(tuple(sizes[:fit]), chance.uniform(SHORTEST, LONGEST)))
    return made


def made(kind: bytes, size: int) -> bytes:
    """A block, stamped with this moment."""
    return b"%b%06d%019d%b" % (kind, size, time.perf_counter_ns(), FILL[: size - HEAD])


@dataclass
class Taken:
    """One response as it came: pieces, and the nanoseconds of the clock after each; the client's longest pause."""

    pieces: list[tuple[int, bytes]]
    pause: int


@dataclass(frozen=True)
class Arrival:
    """A block that came: its size, nanoseconds from its stamp to its last byte, whether a pause followed it."""

    size: int
    age: int
    last: bool


def take(connection: socket.socket, request: bytes) -> Taken:
    """Asks, and takes the response until the server closes. Raises OSError, TimeoutError included."""
    connection.sendall(request)
    connection.setblocking(False)
    taken = Taken([], 0)
    looked = time.perf_counter_ns()
    end = looked + int(PATIENCE * 1e9)
    while looked < end:
        try:
            data = connection.recv(1 << 20)
        except BlockingIOError:
            data = None
        now = time.perf_counter_ns()
        taken.pause = max(taken.pause, now - looked)
        looked = now
        if data is None:
            continue
        if not data:
            return taken
        taken.pieces.append((now, data))
    raise TimeoutError("the response does not end")


def arrivals(pieces: list[tuple[int, bytes]]) -> list[Arrival]:
    """The blocks of a response, in order. Raises ValueError when it is not one of 200 that is whole."""
    whole = b"".join(data for _, data in pieces)
    ends = list(accumulate(len(data) for _, data in pieces))
    head = whole.find(b"\r\n\r\n")
    if head < 0 or whole[9:12] != b"200":
        raise ValueError(f"status {whole[9:12].decode('latin-1')}")
    chunked = b"transfer-encoding: chunked" in whole[:head].lower()
    spans = list(chunks(whole, head + 4)) if chunked else [(head + 4, len(whole))]
    body = b"".join(whole[begin:end] for begin, end in spans)
    # The end of each span in the body, and how far the body lags behind the response there.
    span_ends = list(accumulate(end - begin for begin, end in spans))
    found = []
    at = 0
    while at < len(body):
        size = int(body[at + 1 : at + 7])
        if size < HEAD or at + size > len(body):
            raise ValueError("not whole blocks")
        last_byte = at + size - 1
        span = bisect_left(span_ends, last_byte + 1)
        in_whole = last_byte + spans[span][1] - span_ends[span]
        arrived = pieces[bisect_left(ends, in_whole + 1)][0]
        found.append(Arrival(size, arrived - int(body[at + 7 : at + HEAD]), body[at : at + 1] == LAST))
        at += size
    return found


def chunks(whole: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Where the data of each chunk begins and ends (RFC 9112, section 7.1). Raises ValueError without the last one."""
    while True:
        line = whole.index(b"\r\n", at)
        size = int(whole[at:line].partition(b";")[0], 16)
        if not size:
            return
        yield line + 2, line + 2 + size
        at = line + 4 + size
