"""Measures TLS 1.3 against other servers: requests, new handshakes, a file, idle and stalled connections.

    python -m bench.tls [--rounds 6] [--seconds 1]

The servers have core 0, `wrk` has core 1, and one server runs at a time, in slices in turn. A figure is the median of
its rounds. Needs wrk, nginx, openssl, gunicorn and granian; those that are missing are left out. The certificate is for
ECDSA P-256 and the same for all. nginx has one worker process; in front of Tailrace, both share core 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

APPLICATION: Final = """
PAGE = b"pong\\n"
HEAD = [("Content-Type", "text/plain"), ("Content-Length", "5")]
FILE = b"x" * 688_000
def app(environ, start_response):
    if environ["PATH_INFO"] == "/file":
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(FILE)))])
        wrapper = environ.get("wsgi.file_wrapper")
        return [FILE] if wrapper is None else wrapper(open("static/file", "rb"))
    start_response("200 OK", HEAD)
    return [PAGE]
"""
NGINX: Final = """
user root; worker_processes 1; pid nginx.pid; error_log stderr; daemon off;
events {{ worker_connections 8192; }}
http {{
    access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    ssl_certificate chain.pem; ssl_certificate_key key.pem; ssl_protocols TLSv1.2 TLSv1.3;
    upstream app {{ server unix:{directory}/app.sock; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port} ssl backlog=2048;
        location / {{ {action} }}
        location /file {{ root static; }}
    }}
}}
"""
PASS: Final = "proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection '';"
PORT: Final = 8543
FILES: Final = ("--certfile", "chain.pem", "--keyfile", "key.pem")
TAILRACE: Final = ("tailrace", "app:app", "--bind", f"https://127.0.0.1:{PORT}", *FILES, "--header-timeout", "60")
SERVERS: Final = {
    "Tailrace": [TAILRACE],
    "nginx -> Tailrace": [("nginx", PASS), ("tailrace", "app:app", "--bind", "unix:app.sock")],
    "nginx alone": [("nginx", 'return 200 "pong\\n";')],
    "granian": [
        (
            *("granian", "app:app", "--interface", "wsgi", "--port", str(PORT), "--backpressure", "128"),
            *("--ssl-certificate", "chain.pem", "--ssl-keyfile", "key8.pem"),
        )
    ],
    "gunicorn": [("gunicorn", "app:app", "-k", "gthread", "--threads", "16", "-b", f"127.0.0.1:{PORT}", *FILES)],
}


class Serving:
    """A server and its front, on core 0."""

    def __init__(self, directory: Path, name: str) -> None:
        self.processes = []
        for program, *arguments in SERVERS[name]:
            if program == "nginx":
                text = NGINX.format(port=PORT, directory=directory, action=arguments[0])
                (directory / "nginx.conf").write_text(text)
                arguments = ["-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", "stderr"]
            path = shutil.which(program, path=f"{Path(sys.executable).parent}:/usr/sbin:{os.environ['PATH']}")
            if path is None:
                raise FileNotFoundError(program)
            command = ["taskset", "-c", "0", path, *arguments]
            log = (directory / f"{program}.log").open("wb")
            started = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, start_new_session=True)
            self.processes.append(started)

    def __enter__(self) -> Serving:  # noqa: PYI034 - typing.Self is of Python 3.11
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), 1) as sock:
                context = ssl._create_unverified_context()
                with context.wrap_socket(sock) as encrypted:
                    encrypted.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                    if encrypted.recv(12) == b"HTTP/1.1 200":
                        return self
            if time.monotonic() > end:
                self.__exit__()
                raise TimeoutError("does not serve")
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        time.sleep(0.1)

    def pids(self) -> list[int]:
        """All their processes."""
        sessions = {process.pid for process in self.processes}
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(path.read_text().rpartition(")")[2].split()[3]) in sessions:
                    found.append(int(path.parent.name))
        return found

    def processor(self) -> float:
        """The processor time that they have used (seconds)."""
        total = 0.0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def resident(self) -> int:
        """Their resident memory, without what they share (bytes)."""
        texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.pids()]
        return sum(int(re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[1]) << 10 for text in texts)  # type: ignore[index]


def wrk(path: str, connections: int, seconds: int, *arguments: str) -> float:
    """Requests a second."""
    command = ["taskset", "-c", "1", "wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s", *arguments]
    said = subprocess.run(
        [*command, f"https://127.0.0.1:{PORT}{path}"], capture_output=True, text=True, timeout=seconds + 60, check=True
    ).stdout
    if "Non-2xx" in said:
        raise subprocess.SubprocessError(f"{path} is answered with errors")
    found = re.search(r"Requests/sec:\s+([0-9.]+)", said)
    return float(found[1]) if found else 0.0


LOADS: Final = {
    "pong c64": ("/", 64, ()),
    "new handshakes c16": ("/", 16, ("-H", "Connection: close")),
    "file of 688 KB c16": ("/file", 16, ()),
}


def measure(directory: Path, rounds: int, seconds: int) -> None:
    """Prints a table for each load."""
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    names = list(SERVERS)
    for each in range(rounds):
        print(f"round {each + 1} of {rounds}", file=sys.stderr, flush=True)
        for name in list(names):
            try:
                with Serving(directory, name) as serving:
                    wrk("/", 64, 1)
                    for load, (path, connections, arguments) in LOADS.items():
                        before, begun = serving.processor(), time.monotonic()
                        rate = wrk(path, connections, seconds, *arguments)
                        used = (serving.processor() - before) / (time.monotonic() - begun)
                        figures.setdefault((load, name), []).append((rate, used / rate * 1e6 if rate else 0.0))
            except (FileNotFoundError, TimeoutError, subprocess.SubprocessError) as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                names.remove(name)
    for load in LOADS:
        print(f"\n| {load} | requests a second | Tailrace / it | processor time, µs | it / Tailrace |")
        print("| --- | --- | --- | --- | --- |")
        ours = figures[load, "Tailrace"]
        for name in names:
            theirs = figures[load, name]
            ratios = [our[0] / their[0] for our, their in zip(ours, theirs, strict=False) if their[0]]
            costs = [their[1] / our[1] for our, their in zip(ours, theirs, strict=False) if our[1]]
            rate, cost = (statistics.median(each[at] for each in theirs) for at in (0, 1))
            print(
                f"| {name} | {rate:,.0f} | {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) | "
                f"{cost:.1f} | {statistics.median(costs):.2f} |"
            )


def idle(directory: Path, count: int = 4000) -> None:
    """Prints the memory of an idle connection, and what connections cost whose handshake stalls."""
    context = ssl._create_unverified_context()
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 200
    for name in ("Tailrace", "nginx alone"):
        with Serving(directory, name) as serving:
            wrk("/", 64, 1)
            before, kept = serving.resident(), []
            for _ in range(count):
                sock = context.wrap_socket(socket.create_connection(("127.0.0.1", PORT)))
                sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                sock.recv(1000)
                kept.append(sock)
            print(f"{name}: {(serving.resident() - before) / count / 1024:.1f} KiB an idle connection")
            for sock in kept:
                sock.close()
    with Serving(directory, "Tailrace") as serving:
        ratios = []
        for _ in range(5):
            alone = wrk("/", 64, 1)
            stalled = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(5000)]
            for sock in stalled:
                sock.sendall(hello)
            time.sleep(0.2)
            ratios.append(wrk("/", 64, 1) / alone)
            for sock in stalled:
                sock.close()
            time.sleep(0.3)
        print(f"pong with 5,000 stalled handshakes: {statistics.median(ratios):.2f} of that without")


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        directory = Path(folder)
        (directory / "app.py").write_text(APPLICATION)
        (directory / "static").mkdir()
        (directory / "static/file").write_bytes(b"x" * 688_000)
        key = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"]
        request = ["openssl", "req", "-x509", "-key", "key.pem", "-subj", "/CN=localhost", "-days", "30"]
        for command in (key, [*request, "-out", "chain.pem"]):
            subprocess.run(command, cwd=directory, check=True, capture_output=True)
        convert = ["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", "key.pem", "-out", "key8.pem"]
        subprocess.run(convert, cwd=directory, check=True)
        measure(directory, given.rounds, given.seconds)
        print()
        idle(directory)


if __name__ == "__main__":
    main()
