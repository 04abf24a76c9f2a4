"""Logs that nobody reads: what they keep in memory, and how long a stop takes.

    .venv/bin/python -m bench.faults.stalled_logs

Standard output (`--access-log -`) and standard error are pipes whose reader has stalled. First 20,000 requests with
heads of 60 KB, and the memory of the worker after them; then, for threads, gevent and debug, requests that fail (each a
traceback in the log), whether the server still answers, and the time of a stop.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

APP = """
def app(environ, start_response):
    if environ["PATH_INFO"] == "/fail":
        raise ValueError("a fault of the application")
    start_response("200 OK", [("Content-Length", "4")])
    return [b"pong"]
"""
REQUESTS = 20_000
HEAD = 60_000
# A stop that takes longer is cut off here (seconds); --graceful-timeout is 2.
LONGEST = 20.0


def begin(directory: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """A server and its port: its output is read up to the banner, and no further."""
    command = [
        sys.executable,
        "-m",
        "tailrace",
        "app:app",
        "--bind",
        "127.0.0.1:0",
        "--graceful-timeout",
        "2",
        *arguments,
    ]
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    text = b""
    while not (found := re.search(rb"listening on http://127\.0\.0\.1:(\d+)\n", text)):
        text += os.read(process.stderr.fileno(), 4096)
    return process, int(found[1])


def ask(client: socket.socket, target: str, filling: int = 0) -> bool:
    """One request on a connection that is kept; whether it was answered."""
    client.sendall(f"GET {target} HTTP/1.1\r\nHost: t\r\nX-Filling: {'x' * filling}\r\n\r\n".encode())
    received = b""
    while b"\r\n\r\n" not in received:
        try:
            piece = client.recv(65536)
        except TimeoutError:
            return False
        if not piece:
            return False
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
    while len(body) < length:
        body += client.recv(65536)
    return True


def resident(pid: int) -> int:
    """Mebibytes in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def worker(process: subprocess.Popen[bytes]) -> int:
    """The process that serves."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else process.pid


def stop(process: subprocess.Popen[bytes]) -> str:
    """How long a stop takes."""
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        os.kill(worker(process), signal.SIGKILL)
        process.kill()
        return f"not within {LONGEST:g} s"
    return f"{time.monotonic() - begun:.1f} s, status {status}"


def main() -> None:
    """Prints the figures."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "app.py").write_text(APP)
        process, port = begin(directory, "--access-log", "-")
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            ask(client, "/")
            before = resident(worker(process))
            for _ in range(REQUESTS):
                assert ask(client, "/", HEAD)
            print(f"memory after {REQUESTS} requests: {resident(worker(process))} MiB (before: {before} MiB)")
        print(f"its stop: {stop(process)}")
        for mode in ("--threads=16", "--gevent", "--debug"):
            process, port = begin(directory, "--access-log", "-", mode)
            answered = 0
            with socket.create_connection(("127.0.0.1", port), 2) as client:
                while answered < 1200 and ask(client, "/fail"):
                    answered += 1
            print(f"{mode[2:]}: {answered} of 1200 requests that fail answered; a stop: {stop(process)}", flush=True)


if __name__ == "__main__":
    main()
