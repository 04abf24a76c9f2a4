"""What a server does most, for profile-guided optimization: the compiler lays out the core by what this run uses.

    python tools/training.py      # tools/profile_guided.py calls it, with an instrumented core on PYTHONPATH

Serves an application with a path for each shape of response, in this process, since the counts of the core are written
when a process exits: plainly, with an access log behind a proxy, over TLS, and compressed. Clients are processes that
keep connections open and send the next request when they have the response. Code that never runs here is optimized for
size and moved out of the way, so the run includes everything that a request may need. Code that runs often is placed
together, so most requests are short ones. Needs the standard library and tests/smoke.py alone. Exit status: 0, or 1
when an answer is other than expected.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import smoke

CONNECTIONS: Final = 16
# As a browser sends it through a proxy.
REQUEST: Final = (
    "{method} {target} HTTP/1.1\r\nHost: www.example.com\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n"
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\nAccept: text/html,*/*\r\n"
    "Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: {coding}\r\nCookie: session=0123456789abcdef; theme=dark\r\n"
    "{more}\r\n"
)
FORM: Final = "name=value&" * 40
MISSING: Final = "/assets/none"
# Method, target, how often, and the body.
SHORT: Final = ("GET", "/page?q=1", 20_000, "")
OTHERS: Final = (
    ("GET", "/list/70000", 200, ""),
    ("GET", "/generator/20000", 200, ""),
    ("GET", "/blocks", 20, ""),
    ("GET", "/write", 300, ""),
    ("GET", "/file", 20, ""),
    ("GET", "/wrapper/20000", 200, ""),
    ("GET", "/assets/page.html", 500, ""),
    ("GET", MISSING, 100, ""),
    ("HEAD", "/page", 300, ""),
    ("POST", "/echo", 1000, FORM),
)
CODINGS: Final = ("gzip, deflate, br, zstd", "gzip", "br", "identity")


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
    """That of smoke.py, and what most applications do: a short page with the headers of a framework."""
    if environ["PATH_INFO"] == "/page":
        headers = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Vary", "Accept, Cookie"),
            ("X-Frame-Options", "DENY"),
        ]
        headers += [("Content-Length", "2000"), ("Set-Cookie", "seen=1; Path=/; HttpOnly; SameSite=Lax")]
        start_response("200 OK", headers)
        return [b"<p>Hello</p>" * 166 + b"end.\n\n\n\n"]
    if environ["PATH_INFO"] == "/blocks":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (b"x" * 128 for _ in range(5000))
    return smoke.app(environ, start_response)


def responses(stream: Any, method: str) -> Iterator[int]:
    """The status of each response that arrives, once it is complete."""
    while line := stream.readline():
        status, length, chunked = int(line.split()[1]), 0, False
        while (field := stream.readline().lower()) not in (b"\r\n", b""):
            name, _, value = field.partition(b":")
            length = int(value) if name == b"content-length" else length
            chunked = chunked or name == b"transfer-encoding"
        if method != "HEAD" and chunked:
            while size := int(stream.readline(), 16):
                stream.read(size + 2)
            stream.readline()
        elif method != "HEAD":
            stream.read(length)
        yield status


def client(port: int, scheme: str, method: str, target: str, count: int, body: str) -> None:
    """Sends `count` requests on CONNECTIONS connections, each the next one when it has the response before."""
    context = ssl._create_unverified_context() if scheme == "https" else None
    selector = selectors.DefaultSelector()

    def connect() -> None:
        sock = socket.create_connection(("127.0.0.1", port))
        sock = context.wrap_socket(sock) if context else sock
        answers = responses(sock.makefile("rb"), method)
        selector.register(sock, selectors.EVENT_READ, answers)

    sent = 0

    def send(sock: Any) -> None:
        nonlocal sent
        more = f"Content-Length: {len(body)}\r\n" if body else ""
        coding = CODINGS[sent % len(CODINGS)]
        sock.sendall((REQUEST.format(method=method, target=target, coding=coding, more=more) + body).encode())
        sent += 1

    for _ in range(min(CONNECTIONS, count)):
        connect()
    for key in list(selector.get_map().values()):
        send(key.fileobj)
    received = 0
    while received < count:
        ready = selector.select(smoke.DEADLINE)
        if not ready:
            raise SystemExit(f"{method} {target}: no answer within {smoke.DEADLINE:.0f} s")
        for key, _ in ready:
            status = next(key.data)
            if status != (404 if target == MISSING else 200):
                raise SystemExit(f"{method} {target}: {status}")
            received += 1
            if sent < count:
                send(key.fileobj)


def train(what: str, share: int, folder: str, scheme: str = "http", **options: Any) -> None:
    """Serves the application and a folder with these options, to clients that send one `share`-th of the requests."""
    import tailrace

    print(f"training: {what}", flush=True)
    options |= {"bind": f"{scheme}://127.0.0.1:0", "static": [f"/assets={folder}"], "threads": 8}
    with tailrace.serve_in_thread(app, **options) as server:
        port = int(server.address[1])
        for method, target, count, body in (SHORT, *OTHERS, SHORT):
            arguments = (str(port), scheme, method, target, str(max(count // share, 1)), body)
            subprocess.run([sys.executable, __file__, *arguments], check=True)
        if scheme == "http":
            for function in smoke.ANY_SERVER * 3:
                function(smoke.Place(port))


def main() -> None:
    """All rounds."""
    # The application fails on purpose, and its tracebacks are of no use here.
    logging.getLogger("tailrace").addHandler(smoke.Kept())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "page.html").write_bytes(b"<p>Hello</p>\n" * 2000)
        train("short and long responses", 1, folder)
        proxied: dict[str, Any] = {"trusted_proxies": ["127.0.0.1"], "access_log": "/dev/null"}
        train("behind a proxy, with an access log", 4, folder, **proxied)
        train("TLS", 20, folder, "https", self_signed=True)
        train("compression", 20, folder, compress=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        port, scheme, method, target, count, body = sys.argv[1:]
        client(int(port), scheme, method, target, int(count), body)
    else:
        main()
