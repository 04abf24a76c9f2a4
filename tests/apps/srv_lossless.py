"""An application whose every response the client can work out from its request, and which ends its process when asked.

/SHAPE/TEXT/SIZE: the text, repeated and cut to so many bytes, in one of SHAPES; /back gives an upload back. X-Worker
names the process that answers. /die/HOW ends it in the middle of the request.
"""

import ctypes
import os
import re
import signal
import time

BLOCK = 1000


def content(text, size):
    """What both ends know."""
    return (text.encode() * (size // len(text) + 1))[:size]


def whole(body):
    return [body]


def blocks(body):
    """Without a length, so that the server has to mark the end."""
    for start in range(0, len(body), BLOCK):
        yield body[start : start + BLOCK]


def nap(body):
    """In flight for a while, nothing sent."""
    time.sleep(0.01)
    return [body]


def pauses(body):
    """In flight for a while, one half sent."""
    yield body[: len(body) // 2]
    time.sleep(0.01)
    yield body[len(body) // 2 :]


def twenty(body):
    """The one with a known capacity: threads / 0.02 s."""
    time.sleep(0.02)
    return [body]


def held(body):
    """A call into C that keeps the interpreter for a while, as many do."""
    ctypes.PyDLL(None).usleep(400_000)
    return [body]


BALLAST = []


def grow(body):
    """For good."""
    BALLAST.append(bytearray(os.urandom(1 << 20)) * 50)
    return [body]


SHAPES = {shape.__name__: shape for shape in (whole, blocks, nap, pauses, held, twenty, grow)}


def hold():
    """A call into C that keeps the interpreter: no exception and no other thread gets a turn."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def loop():
    while True:
        pass


WAYS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "hold": hold,
    "loop": loop,
}


def app(environ, start_response):
    _, shape, *arguments = environ["PATH_INFO"].split("/")
    if shape == "die":
        WAYS[arguments[0]]()
    if shape == "back":
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    else:
        body = content(arguments[0], int(arguments[1]))
    length = [] if shape == "blocks" else [("Content-Length", str(len(body)))]
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Worker", str(os.getpid())), *length])
    return SHAPES.get(shape, whole)(body)
