"""Processor time, waits for the interpreter and garbage collection: an application that causes each, and one that does
not."""

import json
import re
import time

import pytest
from harness.addresses import free_address
from harness.greenlets import GEVENT
from harness.operated import operating
from harness.status import document, metrics
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
    arguments = ["--gc", "python", "--status", at.bind, "--server-timing", "--slow-request-log", "0.15"]
    arguments += ["--access-log", "access.log", "--access-log-format", atoms]
    arguments += ["--gevent"] * (request.param == "greenlets")
    with operating(tmp_path, "app:app", "--workers", "1", *arguments) as server:
        server.asked = at
        yield server


def record(server, target):
    """What the application has got about it."""
    found = {}

    def is_there():
        found.update(json.loads(server.get("/record").body))
        return target in found

    server.until(is_there, f"the record of {target}")
    return found[target]


def test_computing_waiting_and_collecting_are_told_apart(server):
    targets = ("/compute", "/collect", "/wait", "/mixed")
    for target in targets:
        assert server.get(target).status == 200
    found = {target: record(server, target) for target in targets}
    assert found["/compute"]["cpu_ms"] >= 195, found
    assert found["/mixed"]["cpu_ms"] >= 45, found
    # A garbage collection or a busy machine adds the same CPU time to both.
    for target in ("/wait", "/mixed"):
        assert found[target]["app_ms"] - found[target]["cpu_ms"] >= 190, found
    # Collections are those of the request that they delay.
    assert 1 <= found["/collect"]["gc_ms"] <= found["/collect"]["app_ms"]
    assert found["/wait"]["gc_ms"] == 0
    assert document(server.asked)["totals"]["gc_collections"] >= 1


def test_each_place_shows_the_same(server):
    timing = server.get("/compute")["server-timing"]
    assert float(re.search(r"cpu;dur=([\d.]+)", timing)[1]) >= 195
    server.get("/wait")
    shown = dict(re.findall(r"(\w+);dur=([\d.]+)", server.get("/wait")["server-timing"]))
    assert float(shown["app"]) - float(shown["cpu"]) >= 190, shown
    told = record(server, "/compute")
    line = next(line for line in (server.directory / "access.log").read_text().splitlines() if "/compute" in line)
    assert [float(value) for value in line.split()[1:]] == pytest.approx([told["app_ms"], *map(told.get, TIMES)], abs=1)
    server.logged("/compute: slow: done")
    assert float(re.search(r"/compute: slow: done, .* ([\d.]+) s of CPU time", server.log)[1]) >= 0.195

    def endpoint(name):
        return next((each for each in document(server.asked)["endpoints"] if each["endpoint"] == name), None)

    eventually(lambda: endpoint("GET /wait") and endpoint("GET /wait")["responses"] == 2, "both are counted")
    assert endpoint("GET /compute")["cpu_seconds"] == pytest.approx(told["cpu_ms"] / 1e3, abs=0.001)
    waits = endpoint("GET /wait")
    assert waits["application_seconds"] - waits["cpu_seconds"] >= 0.38
    found = document(server.asked)
    assert found["latency"]["cpu"]["sum_seconds"] >= 0.195
    ended = next(each for each in found["slow"] if each["target"] == "/compute")
    assert ended["cpu_seconds"] == pytest.approx(told["cpu_ms"] / 1e3, abs=0.001)
    assert metrics(server.asked)["tailrace_request_phase_seconds_count{cpu}"] > 0


@pytest.mark.skipif(GEVENT, reason="greenlets never wait for the interpreter of each other")
def test_a_wait_for_the_interpreter_is_no_processor_time(tmp_path):
    (tmp_path / "app.py").write_text(HELD)
    with operating(tmp_path, "app:app", "--workers", "1", "--threads", "2") as server:
        server.get("/large/quiet")
        quiet = record(server, "/large/quiet")
        server.get("/busy")
        requests = 0

        def waits():
            nonlocal requests
            requests += 1
            server.get(f"/large/{requests}")
            return record(server, f"/large/{requests}")["interpreter_ms"] >= quiet["interpreter_ms"] + 50

        # On a busy machine, the other thread may come too late to take the interpreter while it is free.
        server.until(waits, "the other thread keeps the interpreter for an interval")
        contended = record(server, f"/large/{requests}")
        server.get("/rest")
    # Some of the waits are before the call. What counted as both would not fit into the time that the request took.
    took = contended["queued_ms"] + max(contended["app_ms"], contended["drained_ms"])
    assert contended["cpu_ms"] + contended["interpreter_ms"] <= took + 1


HELD = """
import json
import sys
import threading

import tailrace

# Who takes the interpreter keeps it for so many seconds.
sys.setswitchinterval(0.06)
records = {}
rested = threading.Event()

@tailrace.on_delivery
def keep(record):
    records[record["target"]] = record

def burn():
    while not rested.is_set():
        pass

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/busy":
        threading.Thread(target=burn, daemon=True).start()
    elif path == "/rest":
        rested.set()
    start_response("200 OK", [("Content-Type", "text/plain")])
    if path == "/record":
        return [json.dumps(records).encode()]
    # Blocks so large that the interpreter is released while they are sent.
    return (b" " * 400_000 for _ in range(20)) if path.startswith("/large") else [b"ok"]
"""


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize(("mode", "frozen", "most"), [("python", False, 10), ("freeze", True, 10), ("idle", True, 100)])
@pytest.mark.parametrize("more", [[], ["--gevent"]])
def test_garbage_is_collected_as_the_option_says(tmp_path, mode, frozen, most, more):
    (tmp_path / "app.py").write_text(GARBAGE)
    with operating(tmp_path, "app:app", "--workers", "1", "--gc", mode, *more) as server:
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
