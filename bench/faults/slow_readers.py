"""How many ordinary requests are answered while 140 clients take 20 MiB each, all different, at a crawl.

    .venv/bin/python -m bench.faults.slow_readers

Prints how many of 50 requests got an answer within 2 s, and the memory of the worker. Ends within a minute.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READERS, ASKED, PATIENCE = 140, 50, 2.0
APPLICATION = """
import itertools

numbers = itertools.count()


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    if environ["PATH_INFO"] == "/large":
        return [b"%016d" % next(numbers) * (20 << 16)]
    return [b"pong"]
"""


def main() -> None:
    """Serves the slow readers, and asks meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "measured.py").write_text(APPLICATION)
        port = 25_000 + os.getpid() % 900
        command = [sys.executable, "-m", "tailrace", "measured:app", "--bind", str(port)]
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
        readers = []
        try:
            await_server(port)
            for _ in range(READERS):
                reader = socket.socket()
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                reader.connect(("127.0.0.1", port))
                reader.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
                readers.append(reader)
            highest, until = 0, time.monotonic() + 15
            while time.monotonic() < until:
                highest = max(highest, resident(process.pid))
                crawl(readers)
            answered = ask(port)
            print(f"{answered} of {ASKED} requests answered within {PATIENCE:g} s")
            print(f"resident: {resident(process.pid) >> 20} MiB, at most {highest >> 20} MiB")
        finally:
            for reader in readers:
                reader.close()
            process.kill()
            process.wait()


def await_server(port: int) -> None:
    """Returns once the server listens."""
    until = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def crawl(readers: list[socket.socket]) -> None:
    """Each reader takes a little."""
    for reader in readers:
        if select.select([reader], [], [], 0)[0]:
            reader.recv(100)
    time.sleep(0.1)


def ask(port: int) -> int:
    """How many of the requests, made at the same time, are answered 200 in time."""
    asked = [socket.create_connection(("127.0.0.1", port)) for _ in range(ASKED)]
    for one in asked:
        one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    until, waiting, answered = time.monotonic() + PATIENCE, list(asked), 0
    while waiting and (left := until - time.monotonic()) > 0:
        for one in select.select(waiting, [], [], left)[0]:
            answered += one.recv(1000).startswith(b"HTTP/1.1 200")
            waiting.remove(one)
    for one in asked:
        one.close()
    return answered


def resident(pid: int) -> int:
    """Bytes in memory of the master's worker."""
    child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    return int(Path(f"/proc/{child}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
