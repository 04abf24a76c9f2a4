"""Memory of Django with four workers: the proportional set size (PSS) of all processes, after 10,000 requests to each
worker, without preloading, with `--preload`, and of gunicorn with its `--preload`.

    python -m bench.memory [--requests 10000]

A page that several processes share counts once in all. Needs `wrk`, Django and gunicorn.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Final

WORKERS: Final = 4
THREADS: Final = 8
APP: Final = "tailrace_compare.served.django_hello:app"
SERVERS: Final = {
    "Tailrace": ["tailrace", APP, "--workers", str(WORKERS), "--threads", str(THREADS), "--bind"],
    "Tailrace --preload": [
        *("tailrace", APP, "--workers", str(WORKERS), "--threads", str(THREADS), "--preload", "--bind")
    ],
    "gunicorn": ["gunicorn", APP, "-k", "gthread", "-w", str(WORKERS), "--threads", str(THREADS), "-b"],
    "gunicorn --preload": [
        *("gunicorn", APP, "-k", "gthread", "-w", str(WORKERS), "--threads", str(THREADS), "--preload", "-b")
    ],
}


def session(leader: int) -> list[int]:
    """The processes of a session, its leader first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # One may end at this moment.
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(path.parent.name))
    return sorted(found, key=lambda pid: (pid != leader, pid))


def pss(pid: int) -> float:
    """MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def await_page(url: str) -> None:
    """Returns once the server answers."""
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def measured(name: str, requests: int, port: int) -> list[float]:
    """The memory of each process in MiB, the root process first, after this number of requests per worker."""
    url = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", *SERVERS[name], f"127.0.0.1:{port}"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as server:
        try:
            await_page(url)
            asked = 0
            while asked < requests * WORKERS:
                wrk = ["wrk", "-t", "1", "-c", "32", "-d", "5s", url]
                said = subprocess.run(wrk, capture_output=True, text=True, check=True).stdout
                found = re.search(r"(\d+) requests in", said)
                assert found is not None, said
                asked += int(found[1])
            return [pss(pid) for pid in session(server.pid)]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def main() -> None:
    """Prints a line for each server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000, metavar="COUNT", help="to each worker (10,000)")
    requests = parser.parse_args().requests
    for number, name in enumerate(SERVERS):
        processes = measured(name, requests, 18_700 + number)
        each = ", ".join(f"{size:.1f}" for size in processes)
        print(f"{name:20} {sum(processes):7.1f} MiB in {len(processes)} processes: {each}", flush=True)


if __name__ == "__main__":
    main()
