"""A crowd of slow clients and its effect on a server: the rate of pongs, the memory and the application threads that
remain; and whether the crowd itself gets its bytes.

Pong is measured before, during and after, in the same round. The notes separate the effects of server and client: the
idle time of both cores (if the client's core was never idle, the crowd's client may have slowed wrk), the processor
time of the crowd's client, and the pongs per second of the server's processor time. The figures of nginx show the cost
of the crowd for a server that has next to no other work.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tailrace_compare import checks, crowd, load, machine
from tailrace_compare.answer import receive
from tailrace_compare.checks import Expected
from tailrace_compare.client import Client, started
from tailrace_compare.launch import HOST, Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import files, shapes
from tailrace_compare.work import Load, Work

PONG_CONNECTIONS = 8
# Times the seconds of a round.
ALONE = 3
CROWDED = 8
SETTLE_SECONDS = 1.0
SAMPLE_SECONDS = 0.25
# A server that is kept busy by its crowd is not waited for.
ANSWER_SECONDS = 2.0


def seen(client: Client) -> crowd.Seen:
    return crowd.Seen(**json.loads(client.ask(10.0)))


class Watch:
    """The peak memory and threads of a server, sampled four times per second; and the peak memory of TCP sockets in the
    kernel, of both ends and all processes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.memory = 0
        self.threads = 0
        self.sockets = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self) -> None:
        while True:
            self.memory = max(self.memory, self.server.memory())
            self.threads = max(self.threads, threads_of(self.server))
            self.sockets = max(self.sockets, socket_memory())
            if self.over.wait(SAMPLE_SECONDS):
                return

    def __enter__(self) -> Watch:  # noqa: PYI034 - typing.Self is of Python 3.11
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


@dataclass(frozen=True)
class Crowded(Scenario):
    """what: "read" or "upload", from `crowd_path`, or "both", from two paths. clients, pace (bytes a second of each),
    size (of each body, for "both" two).

    metrics: the share of its pongs that the server keeps, MB/s of the crowd, MiB of memory, threads occupied.
    """

    what: str = "read"
    crowd_path: str = "/list"
    clients: int = 1000
    pace: float = 100_000
    size: int | str = files.CROWD_BYTES

    def at_once(self) -> int:
        return self.clients

    def load(self, server: Server, ask: Ask) -> Sample:
        seconds = ask.seconds / 2 if ask.quick else ask.seconds
        is_floor = server.peer.package is None
        pong = "/pong" if is_floor else "/"
        path = self.nginx if is_floor and self.nginx else self.crowd_path

        def pongs(times: float) -> tuple[Load, float]:
            """The counts of the client, and the processor time of the server per response, including the crowd."""
            before = server.processor_seconds()
            done = load.run(Work(server.url + pong, PONG_CONNECTIONS, times * seconds, machine.LOAD_CORE))
            used = server.processor_seconds() - before
            return done, used / done.answers if done.answers else 0.0

        free = 0 if is_floor else free_threads(server)
        # Before any load: what a server keeps of the connections of the pongs would else be missing from its growth.
        memory, threads = server.memory(), threads_of(server)
        first, first_cost = pongs(ALONE)
        if not first.rate:
            return Sample({}, 1, "no pongs without the crowd")
        # The connections of the pongs are closed by then.
        time.sleep(SETTLE_SECONDS)
        arguments = [self.what, HOST, server.port, path, self.clients, self.pace, self.size]
        command = [str(argument) for argument in arguments]
        with Watch(server) as watch, started("tailrace_compare.crowd", command, crowd.RAMP_SECONDS + 10) as came:
            time.sleep(SETTLE_SECONDS)
            before, idle, begun = seen(came), idle_seconds(), time.perf_counter()
            during, cost = pongs(CROWDED)
            taken = time.perf_counter() - begun
            idle = [now - then for now, then in zip(idle_seconds(), idle, strict=True)]
            after = seen(came)
            still_free = 0 if is_floor else free_threads(server)
        time.sleep(SETTLE_SECONDS)
        last, last_cost = pongs(ALONE)
        rates = [each.rate for each in (first, last) if each.rate]
        costs = [cost for cost in (first_cost, last_cost) if cost]
        kept, pace, grown, held = (metric.key for metric in self.metrics)
        values = {
            kept: 100 * during.rate / mean(rates),
            pace: (after.moved - before.moved) / taken / 1e6,
            grown: (watch.memory - memory) / 2**20,
        }
        if not is_floor:
            values[held] = float(free - still_free)
        said = [
            f"{first.rate:,.0f}, {during.rate:,.0f} and {last.rate:,.0f} pongs/s",
            f"{100 * mean(costs) / cost if cost else 0:.1f}% kept by the server's processor time",
            f"{threads} threads, {watch.threads} with the crowd",
            f"idle meanwhile: server's core {100 * idle[0] / taken:.0f}%, load's {100 * idle[1] / taken:.0f}%",
            f"the crowd's client used {100 * (after.processor - before.processor) / taken:.0f}%",
            f"{watch.sockets / 2**20:,.0f} MiB in sockets",
            f"{after.served:,} of {self.clients:,} served, {after.answers:,} answers",
            *(f"{count:,} {kind}" for kind, count in after.faults.items()),
        ]
        if during.detail:
            said.append(f"pong: {during.detail}")
        return Sample(values, self.clients - after.served + after.lost + during.errors, ", ".join(said))

    def answers(self, server: Server) -> tuple[Expected, ...]:
        if server.peer.package is None:
            return (self.of_nginx(),)
        sizes = dict(zip(self.crowd_path.split(","), str(self.size).split(","), strict=True))
        uploads = [path for path in sizes if "upload" in path]
        return (
            checks.of_application(self.app, "/"),
            *(checks.of_application(self.app, path) for path in sizes if path not in uploads),
            *(checks.of_application(self.app, path, method="POST", sent=bytes(int(sizes[path]))) for path in uploads),
        )

    def reproduce(self) -> str:
        crowd = f"{self.what} 127.0.0.1 8000 {self.crowd_path} {self.clients} {self.pace:g} {self.size}"
        return f"python -m tailrace_compare.crowd {crowd}  # and meanwhile wrk -t1 -c{PONG_CONNECTIONS} http://127.0.0.1:8000/"


def free_threads(server: Server) -> int:
    """The number of requests that the application runs concurrently: all of those below meet in it."""
    connections: list[socket.socket] = []
    try:
        for _ in range(shapes.MEETING):
            connection = server.connect(ANSWER_SECONDS)
            connections.append(connection)
            connection.sendall(b"GET /meet HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        end = time.perf_counter() + ANSWER_SECONDS
        for connection in connections:
            connection.settimeout(max(0.01, end - time.perf_counter()))
            connection.recv(12)
    except OSError:
        # Some did not come to it; how many met all the same is asked below.
        pass
    finally:
        for connection in connections:
            connection.close()
    try:
        with server.connect(ANSWER_SECONDS) as connection:
            connection.sendall(b"GET /met HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return int(receive(connection).body)
    except (OSError, ValueError):
        return 0


def idle_seconds() -> list[float]:
    """The idle time of the server's core and of the client's core since they started."""
    return [machine.idle_seconds(core) for core in (machine.SERVER_CORE, machine.LOAD_CORE)]


def socket_memory() -> int:
    """Bytes that the kernel holds in TCP sockets."""
    found = re.search(r"^TCP:.* mem (\d+)", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    return int(found.group(1)) * os.sysconf("SC_PAGE_SIZE") if found else 0


def threads_of(server: Server) -> int:
    """Threads of all processes of the server."""
    count = 0
    for pid in server.pids():
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count
