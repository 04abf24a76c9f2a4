"""What clients notice of workers that die: every 5 s one request ends its worker, and others probe without pause.

python -m bench.faults.crashes

Prints how many probes failed of how many, and the longest time without an answer. Four workers, 55 s, a probe about
every 50 ms, each on a connection of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

_WORKERS: Final = 4
_SECONDS: Final = 55.0
_BETWEEN_PROBES: Final = 0.05
_BETWEEN_KILLS: Final = 5.0
_PATIENCE: Final = 2.0
_APPLICATION: Final = """
import os, signal
def app(environ, start_response):
    if environ["PATH_INFO"] == "/kill":
        os.kill(os.getpid(), signal.SIGKILL)
    start_response("200 OK", [("Content-Length", "4")])
    return [b"pong"]
"""


def ask(port: int, target: str) -> bool:
    """Whether a request on a new connection is answered 200."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), _PATIENCE) as client:
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        return client.recv(65536).startswith(b"HTTP/1.1 200 ")
    return False


def kill_now_and_then(port: int, over: threading.Event) -> None:
    while not over.wait(_BETWEEN_KILLS):
        ask(port, "/kill")


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "crashing.py").write_text(_APPLICATION)
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tailrace",
                "crashing:app",
                "--workers",
                str(_WORKERS),
                "--bind",
                f"127.0.0.1:{port}",
            ],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])},
            stderr=subprocess.DEVNULL,
        )
        try:
            while not ask(port, "/"):
                time.sleep(0.05)
            over = threading.Event()
            killer = threading.Thread(target=kill_now_and_then, args=(port, over))
            killer.start()
            began = answered = time.monotonic()
            probes, failed, longest = 0, 0, 0.0
            while (now := time.monotonic()) < began + _SECONDS:
                probes += 1
                if ask(port, "/"):
                    answered = time.monotonic()
                else:
                    failed += 1
                longest = max(longest, time.monotonic() - answered)
                time.sleep(max(0.0, now + _BETWEEN_PROBES - time.monotonic()))
            over.set()
            killer.join()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
    print(f"{failed} of {probes} probes failed; the longest time without an answer was {longest:.2f} s")


if __name__ == "__main__":
    main()
