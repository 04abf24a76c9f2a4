"""Reads of streamed bodies on greenlets, for servers with `--gevent --stream-body`. Every other path answers "pong".

/perform?key=K&program=[["read", 5], ...] performs reads, and answers what they gave. A read that another request breaks off
(/interrupt?key=K, inside the read) is tried again; with &once=1 that leaves a mark in the answer.
/both?first=F&second=S&key=K: two read 5 bytes each, one while the other does; each in a "greenlet" or a "thread". Then
/begun?key=K says true.
/spin?seconds=S keeps the hub for so long, from a timer; with &then=read it reads the body after that.
/work tells the length and hash of the body, of which it works on each piece for longer than that takes to arrive.
"""

import contextlib
import hashlib
import json
import time
from urllib.parse import parse_qs

import gevent
from gevent import getcurrent

READERS = {}
BEGUN = set()


class Interruption(BaseException):
    """Thrown into a read."""


def performed(stream, what, size):
    if what == "readinto":
        buffer = bytearray(size)
        return bytes(buffer[: stream.readinto(buffer)])
    if what == "next":
        return next(stream, b"")
    if what == "readlines":
        return b"|".join(stream.readlines())
    return getattr(stream, what)(size)


def perform(stream, query):
    READERS[query["key"]] = getcurrent()
    gave = []
    for what, size in json.loads(query["program"]):
        while True:
            try:
                gave.append(performed(stream, what, size).decode("latin-1"))
                break
            except Interruption:
                if "once" in query:
                    gave.append("interrupted")
    del READERS[query["key"]]
    return gave


def outcome(stream):
    try:
        return stream.read(5).decode()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def begun(where, stream):
    if where == "thread":
        return gevent.get_hub().threadpool.spawn(outcome, stream)
    return gevent.spawn(outcome, stream)


def both(stream, query):
    first = begun(query["first"], stream)
    with contextlib.suppress(RuntimeError):
        while stream.read(0) == b"":
            gevent.sleep(0.001)
    second = begun(query["second"], stream)
    BEGUN.add(query["key"])
    return [first.get(), second.get()]


def worked_on(stream):
    got, size = hashlib.sha256(), 0
    while piece := stream.read(4096):
        hashlib.pbkdf2_hmac("sha256", piece, b"salt", 2000)
        got.update(piece)
        size += len(piece)
    return [size, got.hexdigest()]


def spin(stream, query):
    # Behind a sleep this greenlet runs in the callback of a timer.
    gevent.sleep(0.001)
    until = time.monotonic() + float(query["seconds"])
    while time.monotonic() < until:
        pass
    return len(stream.read()) if query.get("then") == "read" else None


def app(environ, start_response):
    query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
    stream, what, body = environ["wsgi.input"], environ["PATH_INFO"], "pong"
    if what == "/perform":
        body = perform(stream, query)
    elif what == "/both":
        body = both(stream, query)
    elif what == "/work":
        body = worked_on(stream)
    elif what == "/spin":
        body = spin(stream, query)
    elif what == "/begun":
        body = query["key"] in BEGUN
    elif what == "/interrupt":
        body = query["key"] in READERS
        if body:
            gevent.kill(READERS[query["key"]], Interruption)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]
