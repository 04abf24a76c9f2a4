"""Shapes of responses whose bytes the client can work out for itself, and what the process knows about itself.

A path names the shape, its query the sizes: /list?size=N, /bytes, /generator, /file. What a test shall control goes
through `/wait?gate=G` (answers once the gate is open) and `/open?gate=G`; `/seen?gate=G` answers how many wait.
"""

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from urllib.parse import parse_qs

PATTERN = bytes(range(256)) * 4096
GATE_DEADLINE = 120

gates_lock = threading.Lock()
gates = {}
waiting = Counter()
closed = Counter()
most_running = 0
running = 0
idents = set()
names = Counter()


def pattern(start, size):
    """`size` bytes of the endless pattern from `start` on."""
    start %= 256
    return (PATTERN * (1 + (start + size) // len(PATTERN)))[start : start + size]


def gate(name):
    with gates_lock:
        return gates.setdefault(name, threading.Event())


class FileGate:
    """A gate that is open once a file exists, for a server that takes no more requests."""

    def __init__(self, path):
        self.path = path

    def wait(self, deadline):
        until = time.monotonic() + deadline
        while not os.path.exists(self.path):
            if time.monotonic() > until:
                return False
            time.sleep(0.005)
        return True


def pass_gate(name):
    event = FileGate(name) if name.startswith("/") else gate(name)
    with gates_lock:
        waiting[name] += 1
    try:
        return event.wait(GATE_DEADLINE)
    finally:
        with gates_lock:
            waiting[name] -= 1


class Blocks:
    """An iterable that counts its `close()` calls under a key, and may wait in it."""

    def __init__(self, blocks, key, closing_gate=None):
        self.blocks = iter(blocks)
        self.key = key
        self.closing_gate = closing_gate

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.blocks)

    def close(self):
        if self.closing_gate:
            pass_gate(self.closing_gate)
        with gates_lock:
            closed[self.key] += 1


def in_blocks(size, block):
    for start in range(0, size, block):
        yield pattern(start, min(block, size - start))


def counted(application):
    """Notes how many requests run at once, and on which threads."""

    def app(environ, start_response):
        global running, most_running
        with gates_lock:
            running += 1
            most_running = max(most_running, running)
            idents.add(threading.get_ident())
            names[threading.current_thread().name] += 1
        try:
            return application(environ, start_response)
        finally:
            with gates_lock:
                running -= 1

    return app


@counted
def app(environ, start_response):
    return answer(environ, start_response)


def answer(environ, start_response):
    query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
    size = int(query.get("size", 0))
    block = int(query.get("block", 65536))
    key = query.get("key", "")
    headers = [("Content-Type", "application/octet-stream")]
    if query.get("length"):
        headers.append(("Content-Length", query["length"]))
    shape = environ["PATH_INFO"].strip("/")

    def text(value):
        body = json.dumps(value).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    if shape == "wait":
        opened = pass_gate(query["gate"])
        return text({"opened": opened, "key": key})
    if shape == "open":
        gate(query["gate"]).set()
        return text("open")
    if shape == "seen":
        with gates_lock:
            return text(waiting[query["gate"]])
    if shape == "closed":
        with gates_lock:
            return text(closed[key])
    if shape == "process":
        current = threading.current_thread()
        with gates_lock:
            return text(
                {
                    "active": threading.active_count(),
                    "names": sorted(names),
                    "threads": [[type(thread).__name__, thread.name] for thread in threading.enumerate()],
                    "current": [type(current).__name__, current.name],
                    "most_running": most_running,
                    "idents": len(idents),
                }
            )
    if shape == "sleep":
        threading.Event().wait(float(query["seconds"]))
        return text({"key": key})
    if shape == "body":
        body = environ["wsgi.input"].read()
        return text({"length": len(body), "hash": hashlib.sha256(body).hexdigest()})

    start_response("200 OK", headers)
    if shape == "list":
        return list(in_blocks(size, block))
    if shape == "bytes":
        return pattern(0, size)
    if shape == "generator":
        return Blocks(in_blocks(size, block), key, query.get("closing"))
    if shape == "file":
        file = tempfile.TemporaryFile()  # noqa: SIM115
        for piece in in_blocks(size, 1 << 20):
            file.write(piece)
        file.seek(0)
        return environ["wsgi.file_wrapper"](file) if query.get("wrapped") else file
    if shape == "late":
        # Quick small blocks until the gate opens, then the end.
        return Blocks(until_open(query["gate"], block), key)
    if shape == "pause":
        # A part, a pause of the test's length, another part.
        return Blocks(paused(query["gate"], size, int(query.get("then", 4))), key)
    if shape == "mask":
        import subprocess

        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, check=True).stdout
        return [line + b"\n" for line in status.split(b"\n") if line.startswith((b"Sig", b"Shd"))]
    if shape == "descriptors":
        import subprocess

        script = (
            "import os; print(*[os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2 "
        )
        script += "and os.path.exists(f'/proc/self/fd/{n}')], sep='\\n')"
        command = [sys.executable, "-c", script]
        return [subprocess.run(command, capture_output=True, check=True, close_fds=False).stdout]
    return [b"pong"]


def until_open(name, block):
    event = gate(name)
    start = 0
    while not event.is_set():
        yield pattern(start, block)
        start += block


def paused(name, first, second):
    yield pattern(0, first)
    pass_gate(name)
    yield pattern(first, second)
