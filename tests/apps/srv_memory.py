"""Requests for a server with limited memory: large bodies read at once, large heads, large responses."""

import contextlib
import time

with contextlib.suppress(ImportError):
    import _testcapi

ONE = b"x" * 1000
LARGE = b"x" * 4096


def read(environ, size):
    return [b"%d" % len(environ["wsgi.input"].read())]


def read_into(environ, size):
    return [b"%d" % environ["wsgi.input"].readinto(bytearray(size))]


def read_line(environ, size):
    return [b"%d" % len(environ["wsgi.input"].readline())]


def read_lines(environ, size):
    return [b"%d" % len(environ["wsgi.input"].readlines())]


def many(environ, size):
    """Blocks that are one object, so that the application needs little memory."""
    return [ONE] * (size // len(ONE))


def many_large(environ, size):
    """Blocks that are sent by reference: the list of them is what is large."""
    return [LARGE] * (size // 128)


def many_other(environ, size):
    """Blocks of a kind that has to be converted."""
    return [memoryview(ONE)] * (size // len(ONE))


def empty(environ, size):
    """Very many blocks with nothing in them."""
    return [b""] * (size // 8)


def other(environ, size):
    """A block that has to be converted."""
    return [memoryview(bytearray(size))]


def failed(environ, size):
    raise ValueError("x" * size)


def sleep(environ, size):
    """For so many tenths of a second."""
    time.sleep(size / 10)
    return [b"pong"]


def fail(environ, size):
    """CPython's allocation of this number fails from now on, and as many further ones as the host says."""
    _testcapi.set_nomemory(size, size + int(environ["HTTP_HOST"]))
    return [b"pong"]


def read_parts(environ, size):
    """The length of the body, which is never in memory as a whole."""
    return [b"%d" % sum(map(len, iter(lambda: environ["wsgi.input"].read(65_536), b"")))]


def app(environ, start_response):
    shape = environ["PATH_INFO"].strip("/")
    headers = [("Content-Type", "application/octet-stream")]
    if not shape:
        start_response("200 OK", headers)
        return [b"pong"]
    # By hand: `parse_qs` defines a function, and CPython 3.13.0 crashes when it has no memory for one.
    size = int(environ["QUERY_STRING"].partition("size=")[2].partition("&")[0])
    if shape == "header":
        headers.append(("X-Large", "x" * size))
        start_response("200 OK", headers)
        return [b"pong"]
    body = globals()[shape](environ, size)
    start_response("200 OK", headers)
    return body
