"""What a proxy or a tool wants to fetch: large answers in each shape, the digest of an upload, and who asked.

/bytes/N in one block, /blocks/N from a generator, /file/N through wsgi.file_wrapper; /digest of a body; /seen/KEY counts
the requests for /check/KEY. /until/KEY gives one block, and another after /open/KEY was asked for; /seen/KEY then counts
the bodies that were closed. Any other path: environ as JSON.
"""

import hashlib
import json
import tempfile
import threading

PATTERN = bytes(range(251))
BLOCK = 10_000

counts = {}
gates = {}
lock = threading.Lock()


def content(length):
    """The first `length` bytes of a pattern that no power of two divides."""
    return (PATTERN * (length // len(PATTERN) + 1))[:length]


def blocks(length):
    whole = content(length)
    for start in range(0, length, BLOCK):
        yield whole[start : start + BLOCK]


def as_file(environ, length):
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the server, through the wrapper
    file.write(content(length))
    file.seek(0)
    return environ["wsgi.file_wrapper"](file)


def count(key):
    with lock:
        counts[key] = counts.get(key, 0) + 1


def gate(key):
    with lock:
        return gates.setdefault(key, threading.Event())


def until_open(key):
    try:
        yield b"first\n"
        gate(key).wait(20.0)
        yield b"second\n"
    finally:
        count(key)


def digest(body):
    sha, length = hashlib.sha256(), 0
    while block := body.read(65536):
        sha.update(block)
        length += len(block)
    return {"sha256": sha.hexdigest(), "length": length}


def app(environ, start_response):
    _, kind, *rest = environ["PATH_INFO"].split("/")
    if kind in ("bytes", "blocks", "file"):
        length = int(rest[0])
        headers = [("Content-Type", "application/octet-stream")]
        if kind == "file":
            headers.append(("Content-Length", rest[0]))
        start_response("200 OK", headers)
        if kind == "file":
            return as_file(environ, length)
        return blocks(length) if kind == "blocks" else [content(length)]
    if kind == "until":
        start_response("200 OK", [("Content-Type", "text/plain"), ("X-Accel-Buffering", "no")])
        return until_open(rest[0])
    if kind == "open":
        gate(rest[0]).set()
        answer = {}
    elif kind == "check":
        count(rest[0])
        answer = {"well": True}
    elif kind == "seen":
        answer = {"count": counts.get(rest[0], 0)}
    elif kind == "digest":
        answer = digest(environ["wsgi.input"])
    else:
        answer = {}
    answer |= {key: value for key, value in environ.items() if isinstance(value, str)}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
