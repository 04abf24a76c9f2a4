"""One response of 2.5 MB in 19,478 blocks of 128 bytes, by HTTP and by uwsgi, over TCP and over UNIX sockets.

    python -m bench.protocols [--fetches 40]

Beside Tailrace stand the servers that speak the uwsgi protocol themselves: uwsgi, and gunicorn. Of each fetch there are
two times: until the client has the last byte, and from the call of the application to its `close()`. The server has one
core and the client the other; the servers are stopped but for the one whose turn it is, and each has its turn in every
round. Medians are printed, in milliseconds.

The client is this program. It speaks uwsgi as a proxy does; HTTP it asks with `Connection: close`, so that both
protocols have one connection for each request.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import time
from typing import Final

from tailrace.compare import machine
from tailrace.compare.answer import Answer
from tailrace.compare.launch import NotServing, Server, stop
from tailrace.compare.peers import GUNICORN, TAILRACE, UWSGI, Peer
from tailrace.compare.served.shapes import WORDS

APP: Final = "served.shapes:words"
WARM: Final = 3
TAILRACE_COMMAND: Final = "{bin}/tailrace {app} --trusted-proxies unix,127.0.0.1 --bind "
GUNICORN_COMMAND: Final = GUNICORN + "--worker-class gthread --threads 8 {app} --bind "
HTTP: Final = "HTTP"
PROTOCOL: Final = "uwsgi"

# Server, protocol, command over TCP, command over a UNIX socket.
ROWS: Final = (
    (TAILRACE, HTTP, TAILRACE_COMMAND + "{host}:{port}", TAILRACE_COMMAND + "unix:{socket}"),
    (TAILRACE, PROTOCOL, TAILRACE_COMMAND + "uwsgi://{host}:{port}", TAILRACE_COMMAND + "uwsgi+unix:{socket}"),
    ("uwsgi", HTTP, UWSGI + "--http-socket {host}:{port}", UWSGI + "--http-socket {socket}"),
    ("uwsgi", PROTOCOL, UWSGI + "--socket {host}:{port}", UWSGI + "--socket {socket}"),
    ("gunicorn", HTTP, GUNICORN_COMMAND + "{host}:{port}", GUNICORN_COMMAND + "unix:{socket}"),
    (
        "gunicorn",
        PROTOCOL,
        GUNICORN_COMMAND + "{host}:{port} --protocol uwsgi",
        GUNICORN_COMMAND + "unix:{socket} --protocol uwsgi",
    ),
)


def request(protocol: str, path: str) -> bytes:
    """A GET in this protocol."""
    if protocol == HTTP:
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    # What nginx sends with its `uwsgi_params`, as far as it is not empty.
    variables = {
        "QUERY_STRING": "",
        "REQUEST_METHOD": "GET",
        "REQUEST_URI": path,
        "PATH_INFO": path,
        "DOCUMENT_ROOT": "/usr/share/nginx/html",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REQUEST_SCHEME": "http",
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": "40000",
        "SERVER_PORT": "80",
        "SERVER_NAME": "localhost",
        "HTTP_HOST": "127.0.0.1",
    }
    packed = b""
    for name, value in variables.items():
        packed += len(name).to_bytes(2, "little") + name.encode() + len(value).to_bytes(2, "little") + value.encode()
    return b"\0" + len(packed).to_bytes(2, "little") + b"\0" + packed


class Way(Server):
    """A server that is asked by one protocol."""

    def __init__(self, name: str, protocol: str, command: str, over_unix: bool) -> None:
        self.protocol = protocol
        self.place = "UNIX" if over_unix else "TCP"
        # Milliseconds at the client, and in the application.
        self.client: list[float] = []
        self.application: list[float] = []
        super().__init__(Peer(name, name, command, "", unix=command), APP, over_unix)

    def answers(self, timeout: float = 2.0) -> bool:
        """Whether the application answers in time."""
        try:
            return self.ask("/ready", timeout)[1].status == 200
        except (OSError, ValueError):
            return False

    def ask(self, path: str, timeout: float = 60.0) -> tuple[float, Answer]:
        """Milliseconds until the last byte, and the answer. Raises OSError."""
        # gunicorn keeps the connection after an answer with a length. Others are only collected meanwhile.
        answer, parts = Answer(), []
        with self.connect(timeout) as connection:
            begun = time.perf_counter()
            connection.sendall(request(self.protocol, path))
            while part := connection.recv(1 << 18):
                if answer.body_at and answer.length is None:
                    parts.append(part)
                elif answer.feed(part):
                    break
            taken = time.perf_counter() - begun
        answer.feed(b"".join(parts))
        if not answer.complete:
            answer.end()
        return 1000 * taken, answer

    def fetch(self, keep: bool) -> None:
        """One fetch. Raises OSError, also for an answer that is not whole."""
        taken, answer = self.ask("/")
        if answer.status != 200 or not answer.complete or len(answer.body) < len(WORDS):
            raise ConnectionResetError(f"status {answer.status}, {len(answer.body)} bytes")
        if keep:
            self.client.append(taken)

    def times(self) -> list[float]:
        """The times in the application since the last call, in milliseconds."""
        found: list[float] = json.loads(self.ask("/times")[1].body)
        return found


def started() -> tuple[list[Way], list[str]]:
    """The ways that serve, stopped; and a line for each of the others."""
    ways, missing = [], []
    for name, protocol, over_tcp, over_unix in ROWS:
        for command, is_unix in ((over_tcp, False), (over_unix, True)):
            way = Way(name, protocol, command, is_unix)
            try:
                way.wait_until_ready()
                for _ in range(WARM):
                    way.fetch(keep=False)
                way.times()
            except (NotServing, OSError) as fault:
                missing.append(f"{name}, {protocol} over {way.place}: {fault}")
                stop([way])
                continue
            way.signal(signal.SIGSTOP)
            ways.append(way)
    return ways, missing


def measure(ways: list[Way], fetches: int, at_once: int = 2) -> None:
    """Every server in turn, again and again."""
    for _ in range(fetches // at_once):
        for way in ways:
            way.signal(signal.SIGCONT)
            for _ in range(at_once):
                way.fetch(keep=True)
            way.application += way.times()
            way.signal(signal.SIGSTOP)


def table(ways: list[Way]) -> str:
    """The medians, a row for each server and protocol."""
    lines = ["| server | protocol | TCP: client, application (ms) | UNIX: client, application (ms) |"]
    lines.append("| --- | --- | --- | --- |")
    for name, protocol, *_ in ROWS:
        cells = []
        for place in ("TCP", "UNIX"):
            found = [way for way in ways if (way.peer.name, way.protocol, way.place) == (name, protocol, place)]
            times = [(statistics.median(way.client), statistics.median(way.application)) for way in found]
            cells.append(f"{times[0][0]:.1f}, {times[0][1]:.1f}" if times else "-")
        lines.append(f"| {name} | {protocol} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetches", type=int, default=40, help="of each server (40)")
    asked = parser.parse_args()
    machine.take_load_core()
    ways: list[Way] = []
    try:
        ways, missing = started()
        measure(ways, asked.fetches)
    finally:
        for way in ways:
            way.signal(signal.SIGCONT)
        stop(list(ways))
    print(f"{machine.processor()}; {asked.fetches} fetches of {len(WORDS):,} bytes\n\n{table(ways)}")
    for line in missing:
        print(f"missing: {line}")


if __name__ == "__main__":
    main()
