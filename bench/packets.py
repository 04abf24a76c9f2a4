"""What HTTP and uwsgi, over TCP and UNIX sockets, cost a response of many small blocks; and the uwsgi of other servers.

python -m bench.packets [--rounds 20]

The response is /words of examples/seeds.py, 2.5 MB in blocks of 128 bytes. One client asks, each time on a connection
of its own, and reads to the end of that. Every way has its turn in each round; a figure is the median of its rounds,
and a ratio that of those within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import fronts, machine
from bench.fronts import Address, free_address, running  # this also puts the tests on the path
from examples import seeds

from harness.packets import packet, variables  # isort: skip

APPLICATION = str(fronts.ROOT / "examples" / "seeds.py")
TARGET = "/words"
HTTP = f"GET {TARGET} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode()
PACKET = packet(variables(TARGET))
FIRST = "Tailrace, HTTP over TCP"


class Way(NamedTuple):
    """Where to ask, and what to send."""

    address: Address
    request: bytes


def commands(directory: Path) -> Iterator[tuple[list[str], dict[str, Way]]]:
    """Each server's command, and the ways to it by name."""
    programs = Path(sys.executable).parent

    def both(name: str) -> tuple[Address, Address]:
        return free_address(), Address(path=str(directory / name))

    tcp, unix = both("http")
    packets, packets_unix = both("uwsgi")
    binds = [tcp.bind, unix.bind, f"uwsgi://{packets.bind}", f"uwsgi+{packets_unix.bind}"]
    options = [text for bind in binds for text in ("--bind", bind)]
    tailrace = [sys.executable, "-m", "tailrace", APPLICATION, *options]
    yield (
        [*tailrace, "--trusted-proxies", "unix,127.0.0.1"],
        {
            FIRST: Way(tcp, HTTP),
            "Tailrace, HTTP over UNIX": Way(unix, HTTP),
            "Tailrace, uwsgi over TCP": Way(packets, PACKET),
            "Tailrace, uwsgi over UNIX": Way(packets_unix, PACKET),
        },
    )
    tcp, unix = both("peer")
    served = ["--socket", tcp.bind, "--socket", unix.path, "--master", "--threads", "8", "--die-on-term"]
    named = ["--wsgi-file", APPLICATION, "--callable", "app", "--virtualenv", str(programs.parent), "--disable-logging"]
    yield (
        [str(programs / "uwsgi"), *served, *named],
        {
            "uWSGI, uwsgi over TCP": Way(tcp, PACKET),
            "uWSGI, uwsgi over UNIX": Way(unix, PACKET),
        },
    )
    tcp, unix = both("gunicorn")
    served = [
        "--protocol",
        "uwsgi",
        "--worker-class",
        "gthread",
        "--threads",
        "8",
        "--bind",
        tcp.bind,
        "--bind",
        unix.bind,
    ]
    yield (
        [str(programs / "gunicorn"), *served, "--chdir", str(Path(APPLICATION).parent), "seeds:app"],
        {
            "gunicorn, uwsgi over TCP": Way(tcp, PACKET),
            "gunicorn, uwsgi over UNIX": Way(unix, PACKET),
        },
    )


def asked(way: Way) -> float:
    """The time of one response (seconds). Raises OSError when it is not whole."""
    started = time.perf_counter()
    room = bytearray(262_144)
    received = bytearray()
    with way.address.connect() as sock:
        sock.sendall(way.request)
        while count := sock.recv_into(room):
            received += room[:count]
    taken = time.perf_counter() - started
    head, _, body = received.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"] or len(body) < seeds.WORDS_BYTES:
        raise OSError(f"{len(body)} bytes with the status {status}")
    return taken


def measured(rounds: int) -> dict[str, list[float]]:
    """The times of each way, one in each round."""
    with tempfile.TemporaryDirectory(prefix="tr-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        ways: dict[str, Way] = {}
        for command, found in commands(directory):
            try:
                own = directory / str(len(ways))
                own.mkdir()
                stack.enter_context(running(command, next(iter(found.values())).address, own))
            except OSError as fault:
                print(f"left out: {fault}", file=sys.stderr)
                continue
            ways |= found
        for way in ways.values():
            asked(way)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(asked(way))
        return times


def table(times: dict[str, list[float]]) -> str:
    """The medians, and how many times longer than over the first way."""
    lines = ["| way | time of a response, ms | times the first |", "|---|---|---|"]
    for name, each in times.items():
        ratio = statistics.median(own / first for own, first in zip(each, times[FIRST], strict=True))
        lines.append(f"| {name} | {statistics.median(each) * 1e3:.1f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    machine.take_load_core()
    for name, fact in machine.facts().items():
        print(f"{name}: {fact}")
    print(table(measured(rounds)))


if __name__ == "__main__":
    main()
