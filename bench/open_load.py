"""An open load: requests at times that are fixed beforehand, however long the answers take.

    python -m bench.open_load [--options "--hold-writes 0"] [--app served.flask_hello:app] [--slices 36] [--seconds 0.5]

Compares two servers of this build, one with `--options` and one without, in slices in turn with the other stopped, at
30, 60 and 90 % of the rate that the one with the options reached under a closed load of 16 connections. The arrivals
are random (Poisson) and the same for both servers of a turn. An answer's time counts from the planned time of its
request, so that waiting for a connection, or for this client, is not hidden. Prints for each rate the medians of the
slices, and the median and the quartiles of the ratios without / with the options. "Late" is how long after the planned
time the client sent at the latest, for 99 % of the requests.

The servers run on core 0 and the client on core 1. It sleeps between two requests, as a client of a network does.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import select
import signal
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.builds import spread
from tailrace.compare import machine, peers, wrk
from tailrace.compare.answer import receive
from tailrace.compare.launch import Server, stop

REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CONNECTIONS = 64
SHARES = (0.3, 0.6, 0.9)
# Of the closed load that tells how much the server can do.
CLOSED = 16
CLOSED_SLICES = 6
# Of a slice, at its begin, which does not count: the server was stopped until then.
WARM = 0.15
# An answer that takes longer ends the measurement.
PATIENCE = 5.0
TIMER_SLACK = 29


@dataclass(frozen=True)
class Told:
    """Seconds: the times of half and of 99 % of the answers, and the lateness of 99 % of the requests."""

    p50: float
    p99: float
    late: float


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Times of requests, in seconds from the begin: as many as come by chance, `rate` each second on average."""
    chance = random.Random(seed)
    times, at = [], chance.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += chance.expovariate(rate)
    return times


def quantile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def play(
    connections: list[socket.socket], times: list[float], size: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], list[float]]:
    """Sends a request at each of these times, on a connection that has no request under way, or on the first one that
    becomes free. For each the seconds from its time to the end of its answer, and to its sending. Raises OSError when
    an answer is not a 200 of `size` bytes, its head included, or does not come."""
    poll = select.epoll()
    by_descriptor = {connection.fileno(): connection for connection in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    free = deque(by_descriptor)
    numbers = dict.fromkeys(by_descriptor, 0)
    parts = dict.fromkeys(by_descriptor, b"")
    taken, late = [0.0] * len(times), [0.0] * len(times)
    sent = done = 0
    begin = clock()
    try:
        while done < len(times):
            now = clock() - begin
            while free and sent < len(times) and times[sent] <= now:
                descriptor = free.popleft()
                by_descriptor[descriptor].send(REQUEST)
                numbers[descriptor] = sent
                late[sent] = now - times[sent]
                sent += 1
                now = clock() - begin
            events = poll.poll(0)
            if not events:
                # A poll's own time-out is of whole milliseconds.
                wait = times[sent] - now if free and sent < len(times) else PATIENCE
                if wait > 0 and not select.select([poll], [], [], wait)[0] and wait == PATIENCE:
                    raise TimeoutError("an answer does not come")
                continue
            for descriptor, _ in events:
                data = by_descriptor[descriptor].recv(65536)
                if len(data) < size or parts[descriptor]:
                    parts[descriptor] = whole = parts[descriptor] + data
                    if data and len(whole) < size:
                        continue
                    data, parts[descriptor] = whole, b""
                if len(data) != size or not data.startswith(b"HTTP/1.1 200"):
                    raise ConnectionResetError(f"an answer of {len(data)} bytes: {data[:20]!r}")
                number = numbers[descriptor]
                taken[number] = clock() - begin - times[number]
                free.append(descriptor)
                done += 1
    finally:
        poll.close()
    return taken, late


def answer_size(connection: socket.socket) -> int:
    """Bytes of an answer and its head, which are the same each time. Raises OSError."""
    connection.sendall(REQUEST)
    answer = receive(connection)
    if answer.status != 200 or answer.closes:
        raise ConnectionResetError(f"status {answer.status}")
    return len(answer.received)


def measure(server: Server, rate: float, seconds: float, seed: int) -> Told:
    """One slice. The server is not stopped. Raises OSError."""
    times = arrivals(rate, WARM + seconds, seed)
    connections = [server.connect() for _ in range(CONNECTIONS)]
    # Its pauses would be the server's.
    gc.disable()
    try:
        taken, late = play(connections, times, answer_size(connections[0]))
    finally:
        gc.enable()
        for connection in connections:
            connection.close()
    first = sum(at < WARM for at in times)
    return Told(quantile(taken[first:], 0.5), quantile(taken[first:], 0.99), quantile(late[first:], 0.99))


def compare(options: str, app: str, slices: int, seconds: float) -> None:
    peer = next(peer for peer in peers.PEERS if peer.name == peers.TAILRACE)
    servers = [Server(peer, app, extra=options), Server(peer, app)]
    try:
        for server in servers:
            server.wait_until_ready()
            server.signal(signal.SIGSTOP)
        closed: list[list[float]] = [[], []]
        for _ in range(CLOSED_SLICES):
            for server, rates in zip(servers, closed, strict=True):
                server.signal(signal.SIGCONT)
                rates.append(wrk.run(server.url, CLOSED, 1, machine.LOAD_CORE).rate)
                server.signal(signal.SIGSTOP)
        capacity, other = map(statistics.median, closed)
        print(f"{machine.processor()}; {CLOSED} connections that ask again and again: {capacity:.0f} requests/s")
        ratios = spread([other / one for one, other in zip(*closed, strict=True)])
        print(f"with {options}; {other:.0f} without; ratio {ratios}")
        print(f"| requests/s | p50, ms: with {options}; without | p99 | ratio of p50 | ratio of p99 | late, ms |")
        print("| --- | --- | --- | --- | --- | --- |")
        for share in SHARES:
            rows = [turn(servers, share * capacity, seconds, number) for number in range(slices)]
            with_, without = ([row[which] for row in rows] for which in (0, 1))
            p50, p99, late = (
                [1e3 * statistics.median(getattr(told, name) for told in each) for each in (with_, without)]
                for name in ("p50", "p99", "late")
            )
            halves = spread([other.p50 / one.p50 for one, other in rows])
            most = spread([other.p99 / one.p99 for one, other in rows])
            print(
                f"| {share * capacity:.0f} ({100 * share:.0f} %) | {p50[0]:.3f}; {p50[1]:.3f} "
                f"| {p99[0]:.2f}; {p99[1]:.2f} | {halves} | {most} | {late[0]:.2f}; {late[1]:.2f} |",
                flush=True,
            )
    finally:
        for server in servers:
            server.signal(signal.SIGCONT)
        stop(servers)


def turn(servers: list[Server], rate: float, seconds: float, number: int) -> tuple[Told, Told]:
    """A slice of each, one after the other, begun by each in turn."""
    told: dict[Server, Told] = {}
    for server in servers if number % 2 else reversed(servers):
        server.signal(signal.SIGCONT)
        told[server] = measure(server, rate, seconds, number)
        server.signal(signal.SIGSTOP)
    return told[servers[0]], told[servers[1]]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.open_load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--options", default="--hold-writes 0", help="of the one server (--hold-writes 0)")
    parser.add_argument("--app", default="served.flask_hello:app", help="as module:name")
    parser.add_argument("--slices", type=int, default=36, help="of each server at each rate")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a slice that count")
    asked = parser.parse_args()
    machine.take_load_core()
    # A sleep ends when it is due, and not up to 50 us later (PR_SET_TIMERSLACK, in nanoseconds).
    ctypes.CDLL(None).prctl(TIMER_SLACK, 1000, 0, 0, 0)
    compare(asked.options, asked.app, max(asked.slices, 2), asked.seconds)


if __name__ == "__main__":
    main()
