"""Compares two installed builds of Tailrace in one run: slices of a second in turn, the other server stopped.

    python -m bench.builds OLD NEW [--slices 20] [--only pong] [--with '--max-queue 10 ...']

OLD and NEW are the Python interpreters of two environments that have a build each, or twice the same one, to see what
the options of `--with` cost, which only NEW is started with. Prints for each load the median of
the ratios NEW / OLD of requests a second, with their quartiles, and the same of processor time a request. Needs `wrk`
and two cores: the servers run on core 0, the client on core 1, or on core 0, too, for a single connection.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

APPLICATIONS: Final = """
import functools, tempfile, time
HEAD = [("Content-Type", "text/plain")]
PAGE = bytes(range(256)) * 16
KEPT = tempfile.NamedTemporaryFile()
KEPT.write(b"y" * 200_000)
KEPT.flush()
def pong(environ, start_response):
    start_response("200 OK", [*HEAD, ("Content-Length", "5")])
    return [b"pong\\n"]
def blocks(environ, start_response):
    start_response("200 OK", HEAD)
    return (b"x" * 128 for _ in range(2_000))
def pages(environ, start_response):
    start_response("200 OK", HEAD)
    return (PAGE for _ in range(25))
def ones(environ, start_response):
    start_response("200 OK", HEAD)
    return (b"x" for _ in range(2_000))
def parts(environ, start_response):
    start_response("200 OK", HEAD)
    return [b"x" * 100] * 200
def kept(environ, start_response):
    start_response("200 OK", [*HEAD, ("Content-Length", "200000")])
    return environ["wsgi.file_wrapper"](open(KEPT.name, "rb"))
def sleep(environ, start_response):
    time.sleep(0.1)
    return pong(environ, start_response)
@functools.cache
def site():
    import flask
    made = flask.Flask(__name__)
    made.route("/")(lambda: {"articles": [{"title": f"Article {number}", "price": number} for number in range(20)]})
    return made
def flask(environ, start_response):
    return site()(environ, start_response)
"""


@dataclass(frozen=True)
class Load:
    """An application, so many connections, and what the servers are started with beside."""

    name: str
    application: str
    connections: int
    options: tuple[str, ...] = ()


LOADS: Final = (
    Load("pong c64", "pong", 64),
    Load("pong c1", "pong", 1),
    Load("25 blocks of 4 KiB c64", "pages", 64),
    Load("blocks of 128 bytes c4", "blocks", 4),
    Load("blocks of one byte c4", "ones", 4),
    Load("list c16", "parts", 16),
    Load("file c8", "kept", 8),
    Load("sleep 0.1 s c100", "sleep", 100),
    Load("Flask c16", "flask", 16),
    Load("greenlets, sleep 0.1 s c1000", "sleep", 1000, ("--gevent",)),
    Load("greenlets, pong c64", "pong", 64, ("--gevent",)),
)


class Server:
    """One build, serving on a free port of the loopback address."""

    def __init__(self, interpreter: str, load: Load, folder: str, options: Sequence[str] = ()) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        bind = ("--bind", f"127.0.0.1:{self.port}")
        application = f"loads:{load.application}"
        command = ("taskset", "-c", "0", interpreter, "-m", "tailrace", application, *bind, *load.options, *options)
        environment = {**os.environ, "PYTHONPATH": folder}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
        )
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise SystemExit(f"{interpreter} does not serve: is tailrace installed there?") from None
                time.sleep(0.05)

    def signal(self, number: int) -> None:
        """Sends a signal to all processes of the server."""
        os.killpg(self.process.pid, number)

    def processor_time(self) -> float:
        """Seconds that its processes have used."""
        ticks = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def slice(self, connections: int) -> tuple[float, float]:
        """Requests a second, and seconds of processor time a request."""
        core = "0" if connections == 1 else "1"
        url = f"http://127.0.0.1:{self.port}/"
        before = self.processor_time()
        ran = subprocess.run(
            ("taskset", "-c", core, "wrk", "-t1", f"-c{connections}", "-d1s", url),
            capture_output=True,
            text=True,
            check=True,
        )
        if wrong := re.search(r"Socket errors.*|Non-2xx.*", ran.stdout):
            raise SystemExit(f"wrk: {wrong[0]}")
        rate, count = re.search(r"Requests/sec:\s+([\d.]+)", ran.stdout), re.search(r"(\d+) requests in", ran.stdout)
        if rate is None or count is None or not int(count[1]):
            raise SystemExit(f"wrk said nothing of requests: {ran.stdout}")
        return float(rate[1]), (self.processor_time() - before) / int(count[1])


def compare(old: str, new: str, load: Load, slices: int, options: Sequence[str]) -> str:
    """One line: the ratios of a load. options: of the new one."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "loads.py").write_text(APPLICATIONS)
        servers: list[Server] = []
        try:
            servers.append(Server(old, load, folder))
            servers.append(Server(new, load, folder, options))
            rates, times = [], []
            for server in servers:
                server.slice(load.connections)
                server.signal(signal.SIGSTOP)
            for turn in range(slices):
                seen = {}
                for server in servers if turn % 2 else reversed(servers):
                    server.signal(signal.SIGCONT)
                    seen[server] = server.slice(load.connections)
                    server.signal(signal.SIGSTOP)
                (old_rate, old_time), (new_rate, new_time) = (seen[server] for server in servers)
                rates.append(new_rate / old_rate)
                times.append(new_time / old_time if old_time else 1.0)
        finally:
            for server in servers:
                server.signal(signal.SIGCONT)
                server.signal(signal.SIGTERM)
    return f"| {load.name} | {spread(rates)} | {spread(times)} |"


def spread(ratios: list[float]) -> str:
    """The median and the quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.2f}-{high:.2f})"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--slices", type=int, default=20)
    parser.add_argument("--only", default="", help="loads whose name begins so")
    parser.add_argument("--with", dest="options", default="", help="options of tailrace for NEW alone")
    arguments = parser.parse_args()
    slices, options = max(arguments.slices, 2), shlex.split(arguments.options)
    print("| load | requests a second, new / old | processor time a request, new / old |\n| --- | --- | --- |")
    for load in LOADS:
        if load.name.startswith(arguments.only):
            print(compare(arguments.old, arguments.new, load, slices, options), flush=True)
    print(f"load average: {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
