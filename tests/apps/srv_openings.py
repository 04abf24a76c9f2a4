"""Generators whose openings may be delayed while other requests wait.

/blocks yields 25 blocks of 4 KiB, and /stated states their length, too. /fail raises after its first block, /again
calls start_response again. The others yield a block, or write it, and then wait in the way that their path names, until
the client has written a byte to the pipe GATE. /pong computes for 0.2 ms. /records returns how the responses to the
last generators were delivered.
"""

import collections
import ctypes
import json
import os
import select
import sys
import threading
import time

BLOCK = bytes(range(256)) * 16
GATE = int(os.environ["GATE"])
RECORDS = collections.deque(maxlen=1000)
python = ctypes.PyDLL(None)


def compute():
    """In Python."""
    while not select.select([GATE], [], [], 0)[0]:
        pass
    os.read(GATE, 1)


def sleep():
    while not select.select([GATE], [], [], 0)[0]:
        time.sleep(0.01)
    os.read(GATE, 1)


def keep():
    """In C, with the interpreter."""
    assert python.read(GATE, ctypes.create_string_buffer(1), ctypes.c_size_t(1)) == 1


def lock():
    opened = threading.Lock()
    opened.acquire()
    threading.Thread(target=lambda: (os.read(GATE, 1), opened.release())).start()
    with opened:
        pass


WAITS = {"/compute": compute, "/sleep": sleep, "/keep": keep, "/lock": lock}


def gated(wait):
    yield b"first"
    wait()
    yield b"second"


def failing():
    yield b"first"
    raise ValueError("the generator fails")


def changes_its_mind(start_response):
    yield b"first"
    try:
        raise ValueError("the generator fails")
    except ValueError:
        start_response("503 Service Unavailable", [], sys.exc_info())
    yield b"second"


def app(environ, start_response):
    path = environ["PATH_INFO"]
    headers = [("Content-Type", "application/octet-stream")]
    if path == "/pong":
        until = time.perf_counter() + 0.0002
        while time.perf_counter() < until:
            pass
        start_response("200 OK", [*headers, ("Content-Length", "4")])
        return [b"pong"]
    if path == "/records":
        body = json.dumps([record()["delivery"] for record in RECORDS]).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]
    RECORDS.append(environ["tailrace.delivery"])
    if path == "/stated":
        headers.append(("Content-Length", str(25 * len(BLOCK))))
    write = start_response("200 OK", headers)
    if path in ("/blocks", "/stated"):
        return (BLOCK for _ in range(25))
    if path == "/fail":
        return failing()
    if path == "/again":
        return changes_its_mind(start_response)
    if environ["QUERY_STRING"] == "write":
        write(b"first")
        WAITS[path]()
        return [b"second"]
    return gated(WAITS[path])
