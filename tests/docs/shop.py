"""The application of docs/troubleshooting.md: each path fails in its own way."""

import ctypes
import os
import signal
import time


def app(environ, start_response):
    path = environ["PATH_INFO"].strip("/") or "index"
    return PAGES[path](environ, start_response)


def index(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"Hello, World!\n"]


def query():
    for _ in range(1200):
        time.sleep(0.05)


def report(environ, start_response):
    query()
    return index(environ, start_response)


def crash(environ, start_response):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def spin(environ, start_response):
    # Does not release the interpreter.
    ctypes.PyDLL(None).sleep(60)
    return index(environ, start_response)


def fail(environ, start_response):
    raise ValueError("no such product")


def bare(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return b"bytes"


def short(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "100")])
    return [b"short"]


def large(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Large", "x" * 50_000)])
    return [b"large"]


PAGES = {each.__name__: each for each in (index, report, fail, crash, spin, bare, short, large)}
