"""An application that tells which process serves, and ends it in whatever way it is asked to.

Files in the directory named by STATE steer what happens while it loads: `broken` makes it fail, `fatal` makes the
process end, `slow` makes it wait until that file is gone. `version` is what `/version` answers. While there is a file
`lingers`, a thread of the application does not end.
"""

import atexit
import ctypes
import json
import multiprocessing
import os
import signal
import threading
import time
import urllib.parse
from pathlib import Path

STATE = Path(os.environ.get("STATE", "/nonexistent"))
BALLAST = []


def note(text):
    with (STATE / "notes").open("a") as notes:
        notes.write(f"{text} {os.getpid()}\n")


if STATE.is_dir():
    note("loading")
    while (STATE / "slow").exists():
        time.sleep(0.01)
    if (STATE / "fatal").exists():
        os.kill(os.getpid(), signal.SIGSEGV)
    if (STATE / "broken").exists():
        raise RuntimeError("the new code is broken")
    VERSION = (STATE / "version").read_text() if (STATE / "version").exists() else ""
    atexit.register(note, "at the end")

    def work():
        # What an application does in a thread of its own: no request waits for it, and the process does.
        threading.main_thread().join()
        while (STATE / "lingers").exists():
            time.sleep(0.01)
        note("work done")

    threading.Thread(target=work, name="the work").start()


def app(environ, start_response):
    query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
    body = answer(environ["PATH_INFO"], query, environ)
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def answer(path, query, environ):
    if path == "/version":
        return VERSION.encode()
    if path == "/wait":
        until = time.monotonic() + 30
        Path(query["entered"]).touch()
        while not os.path.exists(query["gate"]) and time.monotonic() < until:
            time.sleep(0.005)
        return b"waited"
    if path == "/exit":
        os._exit(int(query["status"]))
    if path == "/kill":
        os.kill(os.getpid(), int(query["signal"]))
        time.sleep(30)
    if path == "/stuck":
        Path(query["entered"]).touch()
        # A call that never ends, not by a signal either: with the interpreter in its hand, or without.
        library, mutex = (ctypes.PyDLL if query.get("keeps") else ctypes.CDLL)(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)
    if path in ("/compute", "/sleep", "/blocks"):
        return take(path[1:], time.monotonic() + float(query["seconds"]))
    if path == "/ballast":
        BALLAST.append(b"x" * int(query["bytes"]))
    if path == "/child":
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        child.start()
        child.terminate()
        child.join()
        return str(child.exitcode).encode()
    if path == "/orphan":
        return orphan()
    if path == "/echo":
        return (query["text"] * int(query.get("times", 1))).encode()
    return {"pid": os.getpid(), "parent": os.getppid(), "multiprocess": environ["wsgi.multiprocess"]}


def take(way, until):
    """Takes its time: with the interpreter in its hand, switched by that now and then, or without. `blocks` is a call
    that no library patches."""
    while way == "compute" and time.monotonic() < until:
        sum(range(1000))
    if way == "sleep":
        time.sleep(until - time.monotonic())
    if way == "blocks":
        ctypes.CDLL(None).sleep(int(until - time.monotonic() + 0.5))
    return b"at last"


def orphan():
    """A grandchild that ends when its parent is gone already; its number."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        parent = os.getpid()
        grandchild = os.fork()
        if grandchild == 0:
            while os.getppid() == parent:
                time.sleep(0.005)
        else:
            os.write(writer, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    found = int(os.read(reader, 32))
    os.close(reader)
    os.close(writer)
    return found
