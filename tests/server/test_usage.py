"""Processor time, waits for the interpreter and garbage collection: an application that causes each, and one that does
not."""

import json
import re
import time
import urllib.request

import pytest
from harness.addresses import free_address
from harness.greenlets import GEVENT
from harness.operated import Operated
from harness.wire import Client
from server.probes import eventually, request

APP = """
import gc
import json
import time

import tailrace

SLEEP = time.sleep
# Many objects, so that a collection takes a while.
HELD = [{"number": [number]} for number in range(400_000)]
records = {}

@tailrace.on_delivery
def keep(record):
    records[record["target"]] = record

def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def app(environ, start_response):
    path = environ["PATH_INFO"]
    body = [b"done"]
    if path == "/compute":
        compute(0.2)
    elif path == "/wait":
        SLEEP(0.2)
    elif path == "/collect":
        gc.collect()
    elif path == "/mixed":
        compute(0.05)
        SLEEP(0.2)
    elif path == "/record":
        body = [json.dumps(records).encode()]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return body
"""
TIMES = ("cpu_ms", "interpreter_ms", "gc_ms")


@pytest.fixture(params=["threads", "greenlets"])
def server(request, tmp_path):
    (tmp_path / "app.py").write_text(APP)
    at = free_address()
    atoms = " ".join(f"{{{each}}}" for each in ("target", "app_ms", *TIMES))
    arguments = ["--status", at.bind, "--server-timing", "--slow", "0.15", "--access-log", "access.log"]
    arguments += ["--access-log-format", atoms] + ["--gevent"] * (request.param == "greenlets")
    with Operated(tmp_path, "app:app", "--workers", "1", *arguments) as server:
        server.serves()
        server.asked = at
        yield server
        server.stop()


def record(server, target):
    """What the application has got about it."""
    found = {}

    def is_there():
        found.update(json.loads(server.get("/record").body))
        return target in found

    server.until(is_there, f"the record of {target}")
    return found[target]


def test_computing_and_waiting_are_told_apart(server):
    for target in ("/compute", "/wait", "/mixed"):
        assert server.get(target).status == 200
    found = {target: record(server, target) for target in ("/compute", "/wait", "/mixed")}
    assert all(each["app_ms"] >= 195 for each in found.values())
    assert found["/compute"]["cpu_ms"] >= 195
    assert found["/wait"]["cpu_ms"] < 100
    assert 45 <= found["/mixed"]["cpu_ms"] < 150


def test_each_place_shows_the_same(server):
    timing = server.get("/compute")["server-timing"]
    assert float(re.search(r"cpu;dur=([\d.]+)", timing)[1]) >= 195
    server.get("/wait")
    of_wait = float(re.search(r"cpu;dur=([\d.]+)", server.get("/wait")["server-timing"])[1])
    assert of_wait < 100
    told = record(server, "/compute")
    line = next(line for line in (server.directory / "access.log").read_text().splitlines() if "/compute" in line)
    assert [float(value) for value in line.split()[1:]] == pytest.approx([told["app_ms"], *map(told.get, TIMES)], abs=1)
    server.logged("/compute: slow: done")
    assert float(re.search(r"/compute: slow: done, .* ([\d.]+) s of processor time", server.log)[1]) >= 0.195

    def document():
        with urllib.request.urlopen(f"{server.asked.url}/status.json", timeout=10) as answer:
            return json.load(answer)

    def endpoint(name):
        return next((each for each in document()["endpoints"] if each["endpoint"] == name), None)

    eventually(lambda: endpoint("GET /wait") and endpoint("GET /wait")["responses"] == 2, "both are counted")
    assert endpoint("GET /compute")["cpu_seconds"] == pytest.approx(told["cpu_ms"] / 1e3, abs=0.001)
    assert endpoint("GET /wait")["cpu_seconds"] < 0.2 < 0.39 < endpoint("GET /wait")["held_seconds"]
    assert document()["latency"]["cpu"]["sum_seconds"] >= 0.195
    ended = next(each for each in document()["slow"] if each["target"] == "/compute")
    assert ended["cpu_seconds"] == pytest.approx(told["cpu_ms"] / 1e3, abs=0.001)
    with urllib.request.urlopen(f"{server.asked.url}/metrics", timeout=10) as answer:
        assert b'tailrace_request_phase_seconds_count{phase="cpu"}' in answer.read()


def test_collections_are_those_of_the_request_that_they_delay(server):
    for target in ("/collect", "/wait"):
        server.get(target)
    found = {target: record(server, target) for target in ("/collect", "/wait")}
    assert found["/collect"]["gc_ms"] >= 1
    assert found["/collect"]["gc_ms"] <= found["/collect"]["app_ms"]
    assert found["/wait"]["gc_ms"] == 0

    with urllib.request.urlopen(f"{server.asked.url}/status.json", timeout=10) as answer:
        assert json.load(answer)["totals"]["gc_collections"] >= 1


@pytest.mark.skipif(GEVENT, reason="greenlets never wait for the interpreter of each other")
def test_a_wait_for_the_interpreter_is_no_processor_time(tmp_path):
    (tmp_path / "app.py").write_text(HELD)
    with Operated(tmp_path, "app:app", "--workers", "1", "--threads", "2") as server:
        server.serves()
        server.get("/large/quiet")
        quiet = record(server, "/large/quiet")
        server.get("/busy")
        server.get("/large/contended")
        contended = record(server, "/large/contended")
        server.stop()
    # Each time that it is released, the other thread keeps it for an interval of 5 ms.
    assert contended["interpreter_ms"] >= quiet["interpreter_ms"] + 5
    # Some of the waits are before the call. What counted as both would not fit into the time that the request took.
    took = contended["queued_ms"] + max(contended["app_ms"], contended["drained_ms"])
    assert contended["cpu_ms"] + contended["interpreter_ms"] <= took + 1


HELD = """
import json
import threading
import time

import tailrace

records = {}

@tailrace.on_delivery
def keep(record):
    records[record["target"]] = record

def burn():
    end = time.monotonic() + 15
    while time.monotonic() < end:
        pass

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/busy":
        threading.Thread(target=burn, daemon=True).start()
    start_response("200 OK", [("Content-Type", "text/plain")])
    if path == "/record":
        return [json.dumps(records).encode()]
    # Blocks so large that the interpreter is released while they are sent.
    return (b" " * 400_000 for _ in range(20)) if path.startswith("/large") else [b"ok"]
"""


@pytest.mark.parametrize(
    ("mode", "frozen", "most"), [("default", False, 10), ("freeze", True, 10), ("idle", True, 100)]
)
@pytest.mark.parametrize("more", [[], ["--gevent"]])
def test_garbage_is_collected_as_the_option_says(tmp_path, mode, frozen, most, more):
    (tmp_path / "app.py").write_text(GARBAGE)
    with Operated(tmp_path, "app:app", "--workers", "1", "--gc", mode, *more) as server:
        server.serves()
        assert json.loads(server.get("/state").body) == [frozen, most]
        with Client(server.address, 30) as held:
            held.send(request("/hold"))
            server.until(lambda: server.get("/held").body == b"True", "the request that runs")
            assert server.get("/leave").status == 200
            # More time than the next look needs; until then, a request runs.
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                assert server.get("/alive").body == b"True"
            server.get("/release")
            assert held.response().status == 200
        if mode == "idle":
            server.until(lambda: server.get("/alive").body == b"False", "the collection while nothing runs")
        else:
            # Nothing has happened since that would cause a collection.
            assert server.get("/alive").body == b"True"
        server.stop()


GARBAGE = """
import gc
import json
import threading
import weakref

held = []
released = threading.Event()

class Node:
    pass

HELD = [[number] for number in range(100_000)]
seen = []

def app(environ, start_response):
    path = environ["PATH_INFO"]
    body = b"ok"
    if path == "/state":
        body = json.dumps([gc.get_freeze_count() >= len(HELD), gc.get_threshold()[2]]).encode()
    elif path == "/leave":
        node = Node()
        node.itself = node
        seen.append(weakref.ref(node))
        # It grows old before it is garbage.
        gc.collect(0)
        gc.collect(1)
        del node
        for _ in range(12):
            gc.collect(1)
    elif path == "/hold":
        held.append(True)
        released.wait(30)
    elif path == "/held":
        body = str(bool(held)).encode()
    elif path == "/release":
        released.set()
    elif path == "/alive":
        body = str(seen[0]() is not None).encode()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]
"""
