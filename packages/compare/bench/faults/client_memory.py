"""What clients can make a worker hold, and what is left of it when they have gone.

Three crowds, each against a fresh server: clients that each send 64 KB of a head that does not end; clients that each
send small bodies that do not end; clients that each pipeline 64 KB of requests behind one that is slow. Prints the
resident memory of the worker before, while they are there, and ten seconds after they left, and how many of 50 ordinary
requests were answered within two seconds each meanwhile (not behind slow requests, which hold all threads).

    .venv/bin/python -m bench.faults.client_memory [CLIENTS]
"""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 1000) for n in range(62))
BODY = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 16000\r\n\r\n" + b"x" * 15_900
ONE = b"GET / HTTP/1.1\r\nHost: a\r\nX-Room: " + b"x" * 950 + b"\r\n\r\n"
BEHIND = b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n" + ONE * (64_000 // len(ONE))
ORDINARY = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

APPLICATION = """
import os
import time

def app(environ, start_response):
    while environ["PATH_INFO"] == "/slow" and not os.path.exists(__file__ + ".open"):
        time.sleep(0.05)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"pong"]
"""


def resident(pid: int) -> float:
    """Resident memory of a process, MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


def worker_of(master: int) -> int:
    """The worker of a master with one."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.05)
    raise TimeoutError("no worker")


def connect(port: int, wanted: bytes) -> socket.socket | None:
    """A client that has sent these bytes, or as much of them as the server took."""
    client = socket.socket()
    client.settimeout(2)
    try:
        client.connect(("127.0.0.1", port))
        client.sendall(wanted)
    except OSError:
        client.close()
        return None
    return client


def is_served(port: int) -> bool:
    """One ordinary request."""
    client = connect(port, ORDINARY)
    if client is None:
        return False
    with client, contextlib.suppress(OSError):
        return client.recv(100).startswith(b"HTTP/1.1 200")
    return False


def show(name: str, clients: int, wanted: bytes, asks: Callable[[int], str]) -> None:
    """One crowd."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(textwrap.dedent(APPLICATION))
        command = [sys.executable, "-m", "tailrace", f"{folder}/app.py", "--bind", f"127.0.0.1:{port}"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as master:
            try:
                while not is_served(port):
                    time.sleep(0.05)
                worker = worker_of(master.pid)
                before = resident(worker)
                crowd = [connect(port, wanted) for _ in range(clients)]
                time.sleep(1)
                while_there = resident(worker)
                served = asks(port)
                Path(folder, "app.py.open").touch()
                for client in crowd:
                    if client is not None:
                        client.close()
                time.sleep(10)
                after = resident(worker)
            finally:
                master.terminate()
    sizes = f"MB before {before:.0f}, with them {while_there:.0f}, 10 s after {after:.0f}"
    print(f"{name}: {clients} clients; {sizes}; {served}")


def of_fifty(port: int) -> str:
    """How many of 50 ordinary requests are answered."""
    return f"{sum(is_served(port) for _ in range(50))} of 50 requests answered"


def main() -> None:
    """All crowds."""
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    show("unfinished heads of 64 KB", clients, HEAD, of_fifty)
    show("unfinished bodies of 16 KB", clients, BODY, of_fifty)
    show("64 KB behind a slow request", min(clients, 2_000), BEHIND, lambda _: "no others asked")


if __name__ == "__main__":
    main()
