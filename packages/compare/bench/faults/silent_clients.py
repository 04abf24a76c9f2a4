"""How many requests are answered while clients are connected that say nothing.

    .venv/bin/python -m bench.faults.silent_clients

Each round starts `tailrace` with a limit of open files (soft, hard), connects silent clients that stay, and then asks
for a small page on new connections, each of which waits two seconds at most.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time

ROUNDS = (
    # soft limit, hard limit, silent clients
    (1024, None, 1100),
    (1024, 1024, 1100),
    (1024, None, 15_000),
)
REQUESTS = 10
APPLICATION = "bench.faults.silent_clients:app"


def app(environ, start_response):  # type: ignore[no-untyped-def]
    """Answers `pong`."""
    start_response("200 OK", [("Content-Length", "4")])
    return [b"pong"]


def main() -> None:
    """Prints a line for each round."""
    upper = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (upper, upper))
    for soft, hard, count in ROUNDS:
        hard = upper if hard is None else hard
        if count + 500 > upper:
            print(f"{count} silent clients: the hard limit of open files here is {upper}")
            continue
        answered, warnings = measure(soft, hard, count)
        print(
            f"limits {soft}/{hard}, {count} silent clients: {answered} of {REQUESTS} requests answered, "
            f"{warnings} warnings"
        )


def measure(soft: int, hard: int, count: int) -> tuple[int, int]:
    """How many requests were answered, and how many warnings the log has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "tailrace", APPLICATION, "--bind", f"127.0.0.1:{port}"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
    )
    silent = []
    try:
        while not ask(port):
            time.sleep(0.05)
        for number in range(count):
            try:
                silent.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            except OSError:
                # The kernel's queue is full: nobody is accepted.
                break
            if number % 100 == 99:
                # The kernel's queue holds some two thousand.
                time.sleep(0.005)
        answered = sum(ask(port) for _ in range(REQUESTS))
    finally:
        for client in silent:
            client.close()
        server.terminate()
        log = server.communicate(timeout=40)[1]
    return answered, log.count("WARNING")


def ask(port: int) -> bool:
    """Whether a request on a new connection is answered."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.settimeout(2)
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return client.recv(1000).endswith(b"pong")
    except OSError:
        return False


if __name__ == "__main__":
    main()
