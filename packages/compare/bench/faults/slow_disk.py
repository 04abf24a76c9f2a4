"""How long ordinary requests take while one upload of 3 MB goes to a disk that takes a second for each write.

    .venv/bin/python -m bench.faults.slow_disk

Prints the longest time of a request that has nothing to do with the disk, and that of the upload. Ends within a minute.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from harness.slow_disk import SlowDisk

SIZE = 3_000_000
APPLICATION = """
def app(environ, start_response):
    body = environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(len(body)).encode()]
"""


def main() -> None:
    """Serves, uploads, and asks meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "measured.py").write_text(APPLICATION)
        disk = SlowDisk(folder)
        port = 25_000 + os.getpid() % 900
        command = [sys.executable, "-m", "tailrace", "measured:app", "--bind", str(port), "--client-memory", "8MiB"]
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **disk.environment}, stderr=subprocess.DEVNULL
        )
        try:
            await_answer(port)
            disk.set("delay", True)
            took: list[float] = []
            upload = threading.Thread(target=lambda: took.append(ask(port, b"x" * SIZE)))
            upload.start()
            longest, asked = 0.0, 0
            while upload.is_alive():
                longest = max(longest, ask(port))
                asked += 1
                time.sleep(0.01)
            print(f"upload {took[0]:.2f} s; {asked} other requests meanwhile, the longest took {longest * 1e3:.1f} ms")
            disk.set("delay", False)
        finally:
            process.terminate()
            process.wait()


def await_answer(port: int) -> None:
    """Returns once the server answers."""
    until = time.monotonic() + 20
    while True:
        try:
            ask(port)
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def ask(port: int, body: bytes | None = None) -> float:
    """Seconds for a request on a connection of its own."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=50)
    connection.request("POST" if body else "GET", "/", body)
    assert int(connection.getresponse().read()) == len(body or b"")
    connection.close()
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
