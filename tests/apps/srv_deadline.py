"""An application whose requests hang: `/WAY?seconds=N`, or until another request releases them."""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
import urllib.parse

import tailrace

GATE = threading.Event()
LOCK = threading.Lock()
LOCK.acquire()
PAIR = socket.socketpair()
ENDED = []


def sleep():
    time.sleep(3600)


def lock():
    LOCK.acquire()


def read():
    PAIR[0].recv(1)


def loop():
    while True:
        pass


def stubborn():
    """Catches whatever it can, twice."""
    for _ in range(2):
        with contextlib.suppress(BaseException):
            loop()


def gate():
    print("at the gate", file=sys.stderr, flush=True)
    GATE.wait(3600)


def hold_logging():
    """Holds what every line of the log needs."""
    for handler in logging.getLogger("tailrace").handlers:
        handler.acquire()
    try:
        GATE.wait(3600)
    finally:
        for handler in logging.getLogger("tailrace").handlers:
            handler.release()


WAYS = {way.__name__: way for way in (sleep, lock, read, loop, stubborn, gate)} | {"logging": hold_logging}


def app(environ, start_response):
    path = environ["PATH_INFO"].strip("/")
    query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
    if "deadline" in query:
        environ["tailrace.set_deadline"](None if query["deadline"] == "none" else float(query["deadline"]))
    if path == "open":
        GATE.set()
        body = b"opened"
    elif path == "ended":
        body = ",".join(ENDED).encode()
    elif path == "pid":
        body = str(os.getpid()).encode()
    elif path == "finished":
        write = start_response("200 OK", [("Content-Length", "3000000")])
        write(bytes(3_000_000))
        loop()
    elif path == "begun":
        return begun(start_response)
    elif path == "nap":
        time.sleep(float(query["seconds"]))
        body = b"rested"
    elif path in WAYS:
        try:
            WAYS[path]()
        except tailrace.RequestTimeout:
            ENDED.append(path)
            raise
        body = b"let go"
    else:
        body = b"pong"
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def begun(start_response):
    """A response that hangs after its first block."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    try:
        yield b"first"
        loop()
    finally:
        ENDED.append("begun")
