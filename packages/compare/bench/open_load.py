"""An open load: requests at times that are fixed beforehand, however long the answers take.

    python -m bench.open_load --options "--gevent" [--app served.flask_hello:app] [--slices 36] [--seconds 0.5]

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
import signal
import statistics
from dataclasses import dataclass

from tailrace_compare import flood, load, machine, peers
from tailrace_compare.launch import HOST, Server, stop
from tailrace_compare.work import Work

from bench.builds import spread

SHARES = (0.3, 0.6, 0.9)
# Of the closed load that tells how much the server can do.
CLOSED = 16
CLOSED_SLICES = 6
# Of a slice, at its begin, which does not count: the server was stopped until then.
WARM = 0.15
TIMER_SLACK = 29


@dataclass(frozen=True)
class Told:
    """Seconds: the times of half and of 99 % of the answers, and the lateness of 99 % of the requests."""

    p50: float
    p99: float
    late: float


def measure(server: Server, rate: float, seconds: float, seed: int) -> Told:
    """One slice. The server is not stopped. Raises OSError when an answer is missing."""
    arriving = flood.Load((HOST, server.port), flood.arrivals(rate, WARM + seconds, seed))
    # Its pauses would be the server's.
    gc.disable()
    try:
        found = arriving.run()
    finally:
        gc.enable()
    if found.faults or set(found.times) != {200}:
        raise ConnectionResetError(f"{dict(found.faults)}, statuses {sorted(found.times)}")
    first = int(WARM * rate)
    times, late = found.times[200][first:], found.late[first:]
    return Told(flood.quantile(times, 0.5), flood.quantile(times, 0.99), flood.quantile(late, 0.99))


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
                rates.append(load.run(Work(server.url, CLOSED, 1, machine.LOAD_CORE)).rate)
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
    parser.add_argument("--options", required=True, help="of the one server")
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
