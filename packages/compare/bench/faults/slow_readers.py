"""What slow readers cost: memory of the worker, uploads and requests of other clients.

    .venv/bin/python -m bench.faults.slow_readers [--only mixed] [--options "--client-memory 64MiB"]

Each crowd meets a fresh server on core 0; the clients run on core 1.

* `tails`: 60 clients take all of a 20 MB block but its last 250 kB, then stop reading.
* `unread`: 6,000 clients read nothing of a block of 250 kB.
* `stream`: for 10 s, 1,200 new clients a second ask for 300 kB and read nothing.
* `mixed`: 5,000 clients ask for different responses of 1 MB and read nothing.

The first two use a UNIX socket, which takes 219 kB, so that a small part of each response waits in the server.

Meanwhile one client asks for a short page on new connections, another uploads 1 MB, in turn. Prints the resident memory
of the worker, what `--status` counts of it, how many of these requests were answered with 200, and their times. A short
page that takes longer than 10 s has failed. `--build PATH` measures another checkout that has been built.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import resource
import select
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 10.0
UPLOAD = b"x" * 1_000_000
REQUEST = b"GET /large?%d HTTP/1.1\r\nHost: a\r\n\r\n"
# Where the server listens in its folder.
SOCKET = "measured.sock"
APPLICATION = """
import itertools

numbers = itertools.count()


def app(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        body = b"%d" % len(environ["wsgi.input"].read())
    elif environ["PATH_INFO"] == "/large":
        body = (b"%016d" % next(numbers)) * (int(environ["QUERY_STRING"]) // 16)
    else:
        body = b"pong"
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    return [body]
"""


@dataclass
class Asked:
    """Requests of one kind: how they were answered, and the seconds that each took."""

    statuses: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, port: int, method: str, body: bytes | None) -> None:
        """Makes one request on a new connection."""
        begun = time.perf_counter()
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        status = 0
        with contextlib.closing(client), contextlib.suppress(OSError, http.client.HTTPException):
            client.request(method, "/", body=body)
            response = client.getresponse()
            response.read()
            status = response.status
        self.statuses.append(status)
        self.times.append(time.perf_counter() - begun)

    def __str__(self) -> str:
        good = self.statuses.count(200)
        if not self.times:
            return "none"
        median, worst = statistics.median(self.times), max(self.times)
        return f"{good} of {len(self.times)}, median {median * 1000:.1f} ms, worst {worst * 1000:.0f} ms"


class Others:
    """The requests of other clients, on a thread of their own."""

    def __init__(self, port: int) -> None:
        self.pages, self.uploads = Asked(), Asked()
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._over.is_set():
            self.pages.add(self._port, "GET", None)
            self.uploads.add(self._port, "POST", UPLOAD)
            self._over.wait(0.05)

    def end(self) -> None:
        """Returns after the last answer."""
        self._over.set()
        self._thread.join()


def asks(port: int | str, size: int) -> socket.socket:
    """A client with a small window that has asked for this many bytes, at a TCP port or a UNIX socket."""
    if isinstance(port, str):
        client = socket.socket(socket.AF_UNIX)
        client.connect(port)
        client.sendall(REQUEST % size)
        return client
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    # The loopback's segments are as long as this window; its sender would wait for room for a whole one.
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
    client.connect(("127.0.0.1", port))
    client.sendall(REQUEST % size)
    return client


def tails(_: int, path: str) -> list[socket.socket]:
    """Take all of a block but its end, then stop reading."""
    readers = {asks(path, 20_000_000): 20_000_000 - 250_000 for _ in range(60)}
    left = dict(readers)
    until = time.monotonic() + 60
    while left and time.monotonic() < until:
        for reader in select.select(list(left), [], [], 1)[0]:
            left[reader] -= len(reader.recv(min(left[reader], 1 << 16)))
            if left[reader] == 0:
                del left[reader]
    return list(readers)


def unread(_: int, path: str) -> list[socket.socket]:
    """Read nothing of a block."""
    return [asks(path, 250_000) for _ in range(6_000)]


def stream(port: int, _: str) -> list[socket.socket]:
    """New clients that read nothing, for 10 s."""
    readers: list[socket.socket] = []
    begun = time.monotonic()
    while (since := time.monotonic() - begun) < 10:
        while len(readers) < since * 1_200:
            readers.append(asks(port, 300_000))
        time.sleep(0.002)
    return readers


def mixed(port: int, _: str) -> list[socket.socket]:
    """Read nothing of different responses."""
    return [asks(port, 1_000_000 + 16 * number) for number in range(5_000)]


CROWDS: dict[str, Callable[[int, str], list[socket.socket]]] = {
    "tails": tails,
    "unread": unread,
    "stream": stream,
    "mixed": mixed,
}


def free_ports() -> tuple[int, int]:
    """Two different ports that were free."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@contextlib.contextmanager
def serving(options: list[str], checkout: str) -> Iterator[tuple[int, str, int, int]]:
    """A server on core 0: its port, its UNIX socket, the port of its figures, and its worker's process."""
    port, status = free_ports()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "measured.py").write_text(APPLICATION)
        path = str(Path(folder, SOCKET))
        addresses = ["--bind", f"127.0.0.1:{port}", "--bind", f"unix:{path}", "--status", f"127.0.0.1:{status}"]
        command = ["taskset", "-c", "0", sys.executable, "-m", "tailrace", "measured:app", *addresses, *options]
        with subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": checkout}) as master:
            try:
                until = time.monotonic() + 20
                while figures(status) is None:
                    if master.poll() is not None or time.monotonic() > until:
                        raise TimeoutError("the server does not start")
                    time.sleep(0.05)
                yield port, path, status, worker(status)
            finally:
                master.kill()


def figures(status: int) -> dict[str, object] | None:
    """What the server counts."""
    client = http.client.HTTPConnection("127.0.0.1", status, timeout=PATIENCE)
    with contextlib.closing(client), contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        client.request("GET", "/status.json")
        return dict(json.loads(client.getresponse().read()))
    return None


def worker(status: int) -> int:
    """The process that serves."""
    shown = figures(status)
    assert shown is not None
    workers = shown["workers"]
    assert isinstance(workers, list)
    return int(workers[0]["pid"])


def resident(pid: int) -> float:
    """Resident memory of a process, MiB. 0: it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0


def files(pid: int) -> tuple[int, float]:
    """Temporary files of a process, and MiB in them."""
    count, size = 0, 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).endswith(" (deleted)"):
                count, size = count + 1, size + entry.stat().st_size
    return count, size / 2**20


def busy(pid: int) -> float:
    """Seconds of the processor that a process has used."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0


def show(name: str, options: list[str], checkout: str) -> None:
    """One crowd."""
    with serving(options, checkout) as (port, path, status, pid):
        before, used, begun = resident(pid), busy(pid), time.monotonic()
        highest = before
        others = Others(port)
        over = threading.Event()

        def watch() -> None:
            nonlocal highest
            while not over.wait(0.05):
                highest = max(highest, resident(pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        readers = CROWDS[name](port, path)
        share = (busy(pid) - used) / (time.monotonic() - begun)
        time.sleep(3)
        others.end()
        over.set()
        watcher.join()
        shown = figures(status) or {}
        in_files = files(pid) if resident(pid) else (0, 0.0)
        print(f"{name}: resident {before:.0f} MiB before, {highest:.0f} at most, {resident(pid):.0f} at the end;")
        print(f"    {in_files[0]} files with {in_files[1]:.0f} MiB; processor {share:.0%} busy;")
        print(f"    pages {others.pages}; uploads {others.uploads}", flush=True)
        if shown.get("workers") and shown["workers"][0]["pid"] != pid:  # type: ignore[index]
            print("    the worker was lost")
        for reader in readers:
            reader.close()


def main() -> None:
    """All crowds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CROWDS)
    parser.add_argument("--options", default="", type=shlex.split)
    parser.add_argument("--build", default=str(Path(__file__).resolve().parents[2]))
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.sched_setaffinity(0, {1})
    for name in CROWDS:
        if arguments.only in (None, name):
            show(name, arguments.options, arguments.build)


if __name__ == "__main__":
    main()
