"""An application for the scripts of `tailrace trace`: requests that are quick, sleep, give a late block, or keep the
interpreter, each for a second and more. Of the last one the body is the number of the thread."""

import ctypes
import threading
import time

LONG = 1.2
# Calls of this library keep the interpreter.
KEEPING = ctypes.PyDLL(None)


def app(environ, start_response):
    path, body = environ["PATH_INFO"], b"three"
    if path == "/sleeps":
        time.sleep(LONG)
    elif path == "/keeps":
        body = str(threading.get_native_id()).encode()
        KEEPING.usleep(int(LONG * 1e6))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return blocks(body) if path == "/late" else [body]


def blocks(last):
    yield b"one "
    yield b"two "
    time.sleep(LONG)
    yield last
