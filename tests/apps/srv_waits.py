"""An application whose requests each wait in another way: for a time, a lock, their client, the interpreter. Each makes
the file `entered` first."""

import ctypes
import threading
import time
import urllib.parse
from pathlib import Path

LOCK = threading.Lock()
LOCK.acquire()
BLOCK = bytes(1 << 20)


def app(environ, start_response):
    query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
    way = environ["PATH_INFO"][1:]
    if "entered" in query:
        Path(query["entered"]).touch()
    if way == "blocks":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return blocks()
    WAYS[way](query)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]


def sleeps(query):
    time.sleep(3600)


def hides(query):
    # PR_SET_DUMPABLE: from now on only root reads the memory of this process.
    ctypes.CDLL(None).prctl(4, 0)
    time.sleep(3600)


def locks(query):
    LOCK.acquire()


def computes(query):
    # A loop in C that does not release the interpreter.
    sum(range(10**13))


def comes_back(query):
    while not Path(query["computes"]).exists():
        time.sleep(0.1)
    # By then another thread keeps the interpreter.
    time.sleep(0.5)


def blocks():
    while True:
        yield BLOCK


WAYS = {
    "sleeps": sleeps,
    "hides": hides,
    "locks": locks,
    "computes": computes,
    "comes_back": comes_back,
    "": lambda query: None,
}
