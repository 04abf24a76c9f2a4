"""What the tests of `--gevent` ask for; every other path is one of srv_shapes.py, whose gates do not block the hub.

A request with ?key=K has a record, which `/record?key=K` tells: blocks it has made, bytes it has read, how often it was
closed, the exception that ended it. `/dump` is the dump of this moment.
"""

import contextlib
import contextvars
import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from urllib.parse import parse_qs

import gevent
import gevent.local
import gevent.monkey
import srv_shapes

real_sleep = gevent.monkey.get_original("time", "sleep")
LIMIT = 30

RECORDS = defaultdict(lambda: {"made": 0, "read": 0, "closed": 0, "ended": None})
GREENLETS = {}
KEPT = {}


class Ended(contextlib.AbstractContextManager):
    """Notes the exception that leaves the block."""

    def __init__(self, record):
        self.record = record

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.record["ended"] = kind.__name__
        return False


class Counting:
    """An iterable that counts its `close()` calls."""

    def __init__(self, blocks, record, closing=lambda: None):
        self.blocks, self.record, self.closing = blocks, record, closing

    def __iter__(self):
        return self.blocks

    def close(self):
        self.record["closed"] += 1
        with Ended(self.record):
            self.closing()


def made_blocks(size, block, record):
    with Ended(record):
        for data in srv_shapes.in_blocks(size, block):
            record["made"] += 1
            yield data


def produce(environ, start_response, query, record):
    """Blocks without end in sight: as an iterable, or by write()."""
    size, block = int(query.get("size", 64 << 20)), int(query.get("block", 1 << 20))
    write = start_response("200 OK", [("Content-Type", "application/octet-stream")])
    if query.get("by") == "write":
        with Ended(record):
            for data in srv_shapes.in_blocks(size, block):
                record["made"] += 1
                write(data)
        return Counting(iter(()), record)
    if query.get("by") == "list":
        return [srv_shapes.pattern(0, block) for _ in range(size // block)]
    return Counting(made_blocks(size, block, record), record)


def consume(environ, start_response, query, record):
    """Reads the beginning of the body, and then all of it."""
    stream = environ["wsgi.input"]
    with Ended(record):
        for size in (10, -1):
            record["read"] += len(stream.read(size))
    return text(start_response, record["read"])


def kill(environ, start_response, query, record):
    """Ends the greenlet of another request."""
    gevent.kill(GREENLETS[query["victim"]])
    return text(start_response, "killed")


# Waiting, in one way or another


def crunch(path):
    until = time.monotonic() + LIMIT
    while not os.path.exists(path) and time.monotonic() < until:
        pass


def sleep_unpatched(path):
    until = time.monotonic() + LIMIT
    while not os.path.exists(path) and time.monotonic() < until:
        real_sleep(0.01)


def sleep_in_one_call(seconds):
    real_sleep(float(seconds))


def sleep_cooperatively(path):
    gevent.sleep(LIMIT)


def refuse_to_end(path):
    """Goes on whatever is raised, until the file is there."""
    until = time.monotonic() + LIMIT
    while not os.path.exists(path) and time.monotonic() < until:
        with contextlib.suppress(BaseException):
            gevent.sleep(0.05)


def open_fifo(path):
    """One call into C, until the test opens the other end."""
    os.close(os.open(path, os.O_RDONLY))


WAYS = {
    way.__name__: way
    for way in (crunch, sleep_unpatched, sleep_in_one_call, sleep_cooperatively, refuse_to_end, open_fifo)
}


def hang(environ, start_response, query, record):
    """`way` is how, `with` what it gets; `where` is call, iteration or close."""
    way, argument, where = WAYS[query["way"]], query.get("with", ""), query.get("where", "call")
    if where == "call":
        with Ended(record):
            way(argument)
        return text(start_response, "over")
    start_response("200 OK", [("Content-Type", "text/plain")])
    if where == "close":
        return Counting(iter([b"first"]), record, lambda: way(argument))

    def blocks():
        with Ended(record):
            yield b"first"
            way(argument)
            yield b"last"

    return Counting(blocks(), record)


def burn(environ, start_response, query, record):
    """Waits at a gate, then keeps the hub for so many seconds of work."""
    srv_shapes.pass_gate(query["gate"])
    until = time.monotonic() + float(query["seconds"])
    while time.monotonic() < until:
        pass
    return text(start_response, "burnt")


def block_in_a_callback(environ, start_response, query, record):
    """The hub itself runs what blocks."""
    gevent.get_hub().loop.run_callback(sleep_in_one_call, query["with"])
    return text(start_response, "asked for")


def blocked_beside_a_request(environ, start_response, query, record):
    """A greenlet of the application blocks, while this request waits for it."""
    gevent.spawn(sleep_in_one_call, query["with"]).join()
    return text(start_response, "over")


# What belongs to a request

LOCAL = gevent.local.local()
THREAD_LOCAL = threading.local()
VARIABLE = contextvars.ContextVar("VARIABLE", default=None)


def seen():
    me = gevent.getcurrent()
    # Not current_thread(): that would leave something in every greenlet.
    thread = threading._active.get(threading.get_ident())
    name = thread.name if thread else ""
    return {
        "gevent.local": getattr(LOCAL, "value", None),
        "threading.local": getattr(THREAD_LOCAL, "value", None),
        "contextvar": VARIABLE.get(),
        "attribute": getattr(me, "value", None),
        "thread name": name if name.startswith("mine") else None,
    }


MARKS = ("gevent.local", "threading.local", "contextvar", "attribute", "thread name")


def mark(value, which):
    if "gevent.local" in which:
        LOCAL.value = value
    if "threading.local" in which:
        THREAD_LOCAL.value = value
    if "contextvar" in which:
        VARIABLE.set(value)
    if "attribute" in which:
        gevent.getcurrent().value = value
    if "thread name" in which:
        threading.current_thread().name = value
    if "kept" in which:
        GREENLETS[value] = gevent.getcurrent()
    if "timeout" in which:
        gevent.Timeout(0.3).start()


def marks(environ, start_response, query, record):
    """What this request sees; then it marks itself, and ends as it is told."""
    before = seen()
    which = query.get("which", "").split(",") if "which" in query else [*MARKS]
    if "set" in query:
        mark(query["set"], which)
    if "gate" in query:
        srv_shapes.pass_gate(query["gate"])
    if query.get("end") == "raise":
        raise LookupError("as asked for")
    if query.get("end") == "nap":
        gevent.sleep(float(query["seconds"]))
    return text(start_response, [before, seen()])


def same_greenlet(environ, start_response, query, record):
    """Whether a greenlet that a request kept is the one that carries this request."""
    return text(start_response, GREENLETS[query["key"]] is gevent.getcurrent())


def marked_stream(environ, start_response, query, record):
    """Marks itself in the call, and tells what it sees in each block and in close()."""
    mark(query["set"], MARKS)
    start_response("200 OK", [("Content-Type", "text/plain")])

    def blocks():
        yield json.dumps(seen()).encode() + b"\n"
        if "break" in query:
            raise LookupError("as asked for")
        srv_shapes.pass_gate(query["gate"])
        yield json.dumps(seen()).encode() + b"\n"
        yield json.dumps(seen()).encode() + b"\n"

    return blocks()


# What is used by others than the request's own greenlet


def outcome(call, *arguments):
    """What a call gives, or the kind of what it raises."""
    try:
        result = call(*arguments)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return result.decode() if isinstance(result, bytes) else repr(result)


def elsewhere(where, call, *arguments):
    """The outcome of a call on another thread, in a thread of gevent's pool, or in the hub itself."""
    done = []
    if where == "thread":
        thread = threading.Thread(target=lambda: done.append(outcome(call, *arguments)))
        thread.start()
        thread.join(LIMIT)
    elif where == "threadpool":
        return gevent.get_hub().threadpool.apply(outcome, (call, *arguments))
    elif where == "hub":
        ended = threading.Event()

        def in_hub():
            done.append(outcome(call, *arguments))
            ended.set()

        gevent.get_hub().loop.run_callback(in_hub)
        ended.wait(LIMIT)
    return done[0] if done else "hangs"


def keep(environ, start_response, query, record):
    """Leaves what it has to others, and ends when its gate opens."""
    write = start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "9")])
    KEPT[query["key"]] = {
        "start_response": lambda: start_response("200 OK", []),
        "write": lambda: write(b"kept"),
        "delivery": lambda: sorted(environ["tailrace.delivery"]()),
        "client_disconnected": environ["tailrace.client_disconnected"],
        "set_deadline": lambda: environ["tailrace.set_deadline"](None),
        "read": environ["wsgi.input"].read,
    }
    if "gate" in query:
        srv_shapes.pass_gate(query["gate"])
    return [b"answered."]


def use(environ, start_response, query, record):
    """Uses what another request has left."""
    return text(start_response, elsewhere(query["where"], KEPT[query["key"]][query["what"]]))


def pooled(environ, start_response, query, record):
    """A thread of gevent's pool reads the body, or writes the response, for this request."""
    pool = gevent.get_hub().threadpool
    if query["what"] == "read":
        return text(start_response, len(pool.apply(environ["wsgi.input"].read)))
    write = start_response("200 OK", [("Content-Type", "application/octet-stream")])

    def write_all():
        for data in srv_shapes.in_blocks(int(query["size"]), 1 << 20):
            write(data)
            record["made"] += 1

    with Ended(record):
        pool.apply(write_all)
    return Counting(iter(()), record)


# Processes


def in_child():
    """A child with a hub of its own at work."""
    gevent.sleep(0.02)
    gevent.joinall([gevent.spawn(gevent.sleep, 0.01) for _ in range(20)])


def fork(environ, start_response, query, record):
    """Forks while other requests are in flight; the child runs a hub and ends."""
    if query["how"] == "os":
        pid = os.fork()
        if pid == 0:
            in_child()
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
    elif query["how"] == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=lambda: (in_child(), os._exit(7)))
        child.start()
        child.join(LIMIT)
        code = child.exitcode
    else:
        code = subprocess.run([sys.executable, "-c", "raise SystemExit(7)"], check=False).returncode
    return text(start_response, code)


# Questions


def text(start_response, value):
    body = json.dumps(value).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def dump(environ, start_response, query, record):
    import tailrace.gevent

    if query.get("to") == "log":
        tailrace.gevent.dump()
        return text(start_response, "dumped")
    file = io.StringIO()
    tailrace.gevent.dump(file)
    return text(start_response, file.getvalue())


def told_record(environ, start_response, query, record):
    return text(start_response, record)


def spawned(environ, start_response, query, record):
    """A greenlet of the application, which outlives this request."""
    greenlet = gevent.spawn(srv_shapes.pass_gate, query["gate"])
    greenlet.name = "refresher"
    return text(start_response, "spawned")


def asks_itself(environ, start_response, query, record):
    """Calls another path of the same server with requests."""
    import requests

    answer = requests.get(
        f"http://127.0.0.1:{environ['SERVER_PORT']}/{query['path']}", params=query.get("params"), timeout=LIMIT
    )
    return text(start_response, [answer.status_code, answer.text])


PATHS = {
    "produce": produce,
    "consume": consume,
    "kill": kill,
    "hang": hang,
    "burn": burn,
    "block_in_a_callback": block_in_a_callback,
    "blocked_beside_a_request": blocked_beside_a_request,
    "marks": marks,
    "same_greenlet": same_greenlet,
    "marked_stream": marked_stream,
    "keep": keep,
    "use": use,
    "pooled": pooled,
    "fork": fork,
    "dump": dump,
    "record": told_record,
    "spawned": spawned,
    "asks_itself": asks_itself,
}


def app(environ, start_response):
    query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
    path = environ["PATH_INFO"].strip("/")
    if "deadline" in query:
        environ["tailrace.set_deadline"](None if query["deadline"] == "none" else float(query["deadline"]))
    if "timeout" in query:
        gevent.Timeout(float(query["timeout"])).start()
    if path not in PATHS:
        return srv_shapes.app(environ, start_response)
    record = RECORDS[query["key"]] if "key" in query else {"made": 0, "read": 0, "closed": 0, "ended": None}
    if "victim_of" in query:
        GREENLETS[query["victim_of"]] = gevent.getcurrent()
    return PATHS[path](environ, start_response, query, record)
