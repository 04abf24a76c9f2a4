"""Whether a worker survives when the system refuses it memory.

    .venv/bin/python -m bench.faults.memory_limit [--limits 600,700] [--runs 10] [--options="--gevent"]

Under each limit of the address space (MiB, as of `ulimit -v`), in each run a fresh server has 120 requests that sleep,
and then 30 clients at once upload 20 MB each. Prints in how many runs the worker was lost, how the uploads were
answered (0: the connection was closed), and whether a request after that was served. `--build PATH` measures another
checkout that has been built.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import os
import resource
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SLEEPERS, UPLOADS, UPLOAD = 120, 30, b"x" * 20_000_000
DEADLINE = 60.0
APPLICATION = """
import time


def app(environ, start_response):
    if environ["PATH_INFO"] == "/sleep":
        time.sleep(0.3)
    body = b"%d" % len(environ["wsgi.input"].read())
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""


def ask(port: int, path: str, body: bytes | None = None) -> int:
    """The status of one request; 0: there was none."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    with contextlib.closing(client), contextlib.suppress(OSError, http.client.HTTPException):
        # A server that refuses an upload may answer before all of it is sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.request("GET" if body is None else "POST", path, body=body)
        response = client.getresponse()
        response.read()
        return response.status
    return 0


def run(limit: int, options: list[str], checkout: str) -> tuple[bool, collections.Counter[int], int]:
    """One run: whether the worker was lost, the statuses of the uploads, and that of a request after them."""
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "measured.py").write_text(APPLICATION)
        command = [sys.executable, "-m", "tailrace", "measured:app", "--bind", f"127.0.0.1:{port}", *options]
        log = Path(folder, "log")
        with (
            log.open("wb") as stderr,
            subprocess.Popen(
                command, cwd=folder, env={**os.environ, "PYTHONPATH": checkout}, stderr=stderr, preexec_fn=limited
            ) as master,
        ):
            try:
                until = time.monotonic() + DEADLINE
                while ask(port, "/") != 200:
                    if master.poll() is not None or time.monotonic() > until:
                        raise TimeoutError(f"the server does not start:\n{log.read_text()}")
                    time.sleep(0.05)
                sleepers = [threading.Thread(target=ask, args=(port, "/sleep")) for _ in range(SLEEPERS)]
                for thread in sleepers:
                    thread.start()
                time.sleep(0.3)
                statuses: collections.Counter[int] = collections.Counter()
                uploads = [
                    threading.Thread(target=lambda: statuses.update([ask(port, "/", UPLOAD)])) for _ in range(UPLOADS)
                ]
                for thread in uploads:
                    thread.start()
                for thread in uploads + sleepers:
                    thread.join()
                after = ask(port, "/")
            finally:
                master.terminate()
        return "was killed by" in log.read_text(), statuses, after


def main() -> None:
    """All runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", default="600,700,800,900", help="MiB")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--options", default="", type=shlex.split)
    parser.add_argument("--build", default=str(Path(__file__).resolve().parents[2]))
    arguments = parser.parse_args()
    for limit in map(int, arguments.limits.split(",")):
        lost, served, statuses = 0, 0, collections.Counter[int]()
        for _ in range(arguments.runs):
            was_lost, answers, after = run(limit, arguments.options, arguments.build)
            lost += was_lost
            served += after == 200
            statuses += answers
        shown = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        print(
            f"{limit} MiB: worker lost in {lost} of {arguments.runs} runs; uploads {shown}; "
            f"served afterwards in {served}",
            flush=True,
        )


if __name__ == "__main__":
    main()
