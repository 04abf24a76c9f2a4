"""How soon a request gets its greenlet: clients that each wait for their answer before they ask again.

Runs `tailrace --gevent` with a small application, and asks by 1, 4 and 64 connections, with server and client on one
processor and on all. Prints requests a second, and processor time and context switches of the worker for each request.

    .venv/bin/python -m bench.faults.greenlet_turns [SECONDS]
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CROWDS = (1, 4, 64)
APPLICATION = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"pong"]
"""


def used(pid: int) -> tuple[float, int]:
    """Processor time (microseconds) and context switches of a process so far."""
    time_used, switches = 0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        time_used += int((task / "schedstat").read_text().split()[0])
        switches += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())))
    return time_used / 1000, switches


def worker_of(master: int) -> int:
    """The worker of a master with one."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if children := Path(f"/proc/{master}/task/{master}/children").read_text().split():
            return int(children[0])
        time.sleep(0.05)
    raise TimeoutError("no worker")


def ask(port: int, connections: int, seconds: float) -> int:
    """How many requests so many connections have answered in the time, each asking when it has its answer."""
    selector = selectors.DefaultSelector()
    for _ in range(connections):
        client = socket.create_connection(("127.0.0.1", port), 10)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.send(REQUEST)
        selector.register(client, selectors.EVENT_READ)
    answered, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for key, _ in selector.select(1):
            client = key.fileobj
            assert isinstance(client, socket.socket)
            assert client.recv(4096).endswith(b"pong")
            answered += 1
            client.send(REQUEST)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    return answered


def measure(directory: str, processors: set[int], seconds: float) -> None:
    """One server on these processors, and its clients there, too."""
    os.sched_setaffinity(0, processors)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tailrace", "turns:app", "--gevent", "--bind", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, cwd=directory, stderr=subprocess.DEVNULL) as server:
        try:
            worker = worker_of(server.pid)
            while ask_fails(port):
                time.sleep(0.05)
            ask(port, 1, 0.3)
            for connections in CROWDS:
                before, switches_before = used(worker)
                answered = ask(port, connections, seconds)
                after, switches = used(worker)
                each, switched = (after - before) / answered, (switches - switches_before) / answered
                where = f"{len(processors)} processors, {connections:3d} connections"
                print(
                    f"{where}: {answered / seconds:8,.0f} requests/s; each {each:5.1f} us and {switched:4.2f} switches"
                )
        finally:
            server.terminate()


def ask_fails(port: int) -> bool:
    """Whether nobody listens yet."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return True
    return False


def main() -> None:
    """Prints a line for each measurement."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    every = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "turns.py").write_text(APPLICATION)
        for processors in ({min(every)}, every):
            measure(directory, processors, seconds)


if __name__ == "__main__":
    main()
