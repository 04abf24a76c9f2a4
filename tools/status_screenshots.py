"""Makes the images of the live page for docs/status.md: a server under load, seen by Chromium.

python tools/status_screenshots.py [--seconds 125] [--output docs/images] [--format webp]

The load lasts for as long as the charts reach back, then the images are made. Needs Chromium and the tests' harness.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.browser import Browser, Chromium  # noqa: E402 - the path of the tests

__all__ = ["ROOT", "Browser", "Chromium", "under_load", "until"]

# Name, width, height, scheme, pixels of a pixel, and the script that is run before.
OPEN_REPORT = (
    "Array.from(document.querySelectorAll('#flights .open')).filter(each => each.textContent.includes('/report'))"
    ".at(-1)?.click()"
)
OPEN_ENDPOINT = (
    "Array.from(document.querySelectorAll('#endpoints .open')).find(each => each.textContent.includes('/export'))"
    ".click();"
    "scrollTo(0, document.querySelector('#endpoints').getBoundingClientRect().top + scrollY - 130)"
)
IMAGES = (
    ("status-light", 1360, 1250, "light", 1.25, OPEN_REPORT),
    ("status-responses", 1360, 900, "light", 1.25, OPEN_ENDPOINT),
    ("status-dark", 1360, 1000, "dark", 1.25, ""),
    ("status-phone", 360, 780, "light", 2.0, "document.querySelector('#endpoints-section').scrollIntoView()"),
)
# Paths of the load, and how often each is asked.
TARGETS = {
    "/products?page=2": 40,
    "/products/1483": 30,
    "/search?q=garden+chair": 12,
    "/invoices/2026-11.pdf": 6,
    "/export.csv": 3,
    "/report/monthly": 2,
    "/checkout": 4,
    "/broken": 1,
    "/pages/half": 1,
}
CLIENTS = 14

_FILE: list[Path] = []


# The application. `tailrace tools/status_screenshots.py` serves it, too.


def app(environ: dict[str, Any], start_response: Any) -> Any:
    """A shop with quick and slow pages."""
    path = environ["PATH_INFO"]
    if path == "/broken":
        start_response("500 Internal Server Error", [("Content-Length", "0")])
        return []
    if path.endswith(".pdf"):
        start_response("200 OK", [("Content-Type", "application/pdf")])
        return environ["wsgi.file_wrapper"](_file().open("rb"))
    start_response("200 OK", [("Content-Type", "text/html")])
    if path == "/pages/half":
        return half_a_page()
    if path.startswith("/export"):
        return export_rows(400)
    if path.startswith("/report"):
        return [render_report()]
    if path.startswith("/checkout"):
        return [charge_card()]
    wait_for_database(0.004 if path.startswith("/products") else 0.06)
    return [b"<li>garden chair</li>" * 300]


def wait_for_database(seconds: float) -> None:
    """As a query would."""
    time.sleep(random.expovariate(1 / seconds))


def charge_card() -> bytes:
    """A slow service elsewhere."""
    time.sleep(random.uniform(0.3, 1.2))
    return b"paid"


def half_a_page() -> Iterator[bytes]:
    """A response that breaks after its head."""
    yield b"<h1>half a page</h1>"
    raise RuntimeError("the template has no footer")


def export_rows(number: int) -> Iterator[bytes]:
    """A response that is made in pieces."""
    for row in range(number):
        if row % 40 == 0:
            wait_for_database(0.02)
        yield b"%d,garden chair,4\n" % row


def render_report() -> bytes:
    """Computes, and waits for several queries."""
    until = time.monotonic() + random.uniform(1.5, 5)
    while time.monotonic() < until:
        wait_for_database(0.05)
        sum(range(20_000))
    return b"report" * 1000


def _file() -> Path:
    if not _FILE:
        path = Path(tempfile.gettempdir(), "tailrace-screenshots.pdf")
        # Another worker may send the one that is there.
        made = path.with_suffix(f".{os.getpid()}")
        made.write_bytes(bytes(300_000))
        made.replace(path)
        _FILE.append(path)
    return _FILE[0]


# The load.


def ask(port: int, over: threading.Event) -> None:
    """One client, which keeps its connection."""
    names, weights = list(TARGETS), list(TARGETS.values())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while not over.is_set():
        try:
            connection.request("GET", random.choices(names, weights)[0])
            connection.getresponse().read()
            time.sleep(random.expovariate(40))
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(0.1)
    connection.close()


def slow_client(port: int, over: threading.Event) -> None:
    """A client that takes a large response slowly."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(b"GET /invoices/2026-10.pdf HTTP/1.1\r\nHost: shop\r\n\r\n")
        while not over.wait(0.2) and sock.recv(2048):
            pass


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def under_load() -> Iterator[str]:
    """A server with load; the URL of its live page."""
    port, status = free_port(), free_port()
    over = threading.Event()
    # The images show names and paths of the application: those of a shop.
    folder = Path(tempfile.gettempdir(), "shop")
    folder.mkdir(exist_ok=True)
    shutil.copy(__file__, folder / "shop.py")
    command = [sys.executable, "-m", "tailrace", "shop:app", "--bind", f"127.0.0.1:{port}"]
    command += ["--status", f"127.0.0.1:{status}", "--workers", "3", "--threads", "4"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    server = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL)
    clients = [threading.Thread(target=ask, args=(port, over)) for _ in range(CLIENTS)]
    clients.append(threading.Thread(target=slow_client, args=(port, over)))
    try:
        _await(status)
        # Else the worker that is ready first accepts all clients.
        time.sleep(1)
        for client in clients:
            client.start()
        yield f"http://127.0.0.1:{status}/"
    finally:
        over.set()
        for client in clients:
            if client.is_alive():
                client.join()
        server.send_signal(signal.SIGTERM)
        server.wait()


def _await(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def main() -> int:
    """Writes the images."""
    parser = argparse.ArgumentParser(description="Makes the images of the live page.")
    parser.add_argument("--seconds", type=float, default=125, help="how long the load lasts before")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images", help="folder of the images")
    parser.add_argument("--format", choices=("webp", "png"), default="webp", help="format of the images")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as profile, under_load() as url, Chromium(Path(profile)) as chromium:
        browser = Browser(chromium)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        time.sleep(chosen.seconds)
        for name, width, height, scheme, scale, script in IMAGES:
            browser.emulate(width=width, height=height, scheme=scheme, scale=scale)
            browser.open(url)
            # The second state makes every rate known.
            until(browser, "latest && samples.list.length > 2 && workers.before.size === latest.workers.length")
            time.sleep(1.5)
            if script:
                browser.value(f"{script}; 0")
                time.sleep(0.6)
            quality = {"quality": 82} if chosen.format == "webp" else {}
            path = chosen.output / f"{name}.{chosen.format}"
            path.write_bytes(browser.screenshot(format=chosen.format, **quality))
            print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def until(browser: Browser, condition: str) -> None:
    """Waits until a condition of the page holds. Raises TimeoutError."""
    end = time.monotonic() + 30
    while not browser.value(f"Boolean({condition})"):
        if time.monotonic() > end:
            raise TimeoutError(condition)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
