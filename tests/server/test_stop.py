"""SIGTERM and SIGINT: requests in flight or queued get responses, idle connections are closed, no request begins
later."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.server import Server
from harness.status import reachable
from server.probes import asking, await_read, await_waiting, digest, eventually, pattern, reading, request, taken, told

STOPS = [signal.SIGTERM, signal.SIGINT]


def begin_to_stop(server, number):
    """Sends the signal, and returns once the server acts on it: idle connections end."""
    with asking(server, "/") as idle:
        assert idle.response().status == 200
        server.send_signal(number)
        idle.at_end(clean=True)


@pytest.mark.parametrize("number", STOPS)
def test_in_flight_requests_finish_and_everything_else_ends(number, tmp_path):
    gate = tmp_path / "gate"
    with Server("srv_shapes:app") as server, ExitStack() as stack:
        idle = stack.enter_context(asking(server, "/"))
        assert idle.response().body == b"pong"
        fresh = stack.enter_context(server.client())
        waits = stack.enter_context(asking(server, f"/wait?gate={gate}&key=a"))
        streams = stack.enter_context(asking(server, f"/pause?gate={gate}&size=5&then=7"))
        stream = streams.head()
        assert streams.chunk(stream) == pattern(5)
        slow = stack.enter_context(asking(server, "/list?size=20000000"))
        slow_head = slow.head()
        # Both wait at the same gate, a file: the server takes no request any more that could open another.
        eventually(lambda: told(server, f"/seen?gate={gate}") == 2, "both in flight")
        server.send_signal(number)
        idle.at_end(clean=True)
        fresh.at_end(clean=True)
        eventually(lambda: not reachable(server.address), "new connections refused")
        assert server.process.poll() is None
        gate.touch()
        answer = waits.response()
        assert (answer.status, answer.connection) == (200, {"close"})
        waits.at_end(clean=True)
        # Its head had left before the signal.
        assert streams.chunk(stream) == pattern(7, 5)
        assert streams.chunk(stream) == b""
        streams.at_end(clean=True)
        assert taken(slow, slow_head) == digest(pattern(20_000_000))
        slow.at_end(clean=True)
        assert server.wait() == 0
        assert signal.Signals(number).name in server.log


@pytest.mark.parametrize("number", STOPS)
def test_queued_requests_are_answered(number, tmp_path):
    gate = tmp_path / "gate"
    with Server("srv_shapes:app", threads=1) as server, ExitStack() as stack:
        idle = stack.enter_context(asking(server, "/"))
        assert idle.response().status == 200
        running = stack.enter_context(asking(server, f"/wait?gate={gate}&key=0"))
        queued = [stack.enter_context(server.client(30)) for _ in range(8)]
        for client in queued:
            client.send(request("/?key=queued"))
        await_read(server)
        server.send_signal(number)
        idle.at_end(clean=True)
        gate.touch()
        assert running.response().status == 200
        for client in queued:
            answer = client.response()
            assert (answer.status, answer.body, answer.connection) == (200, b"pong", {"close"})
            client.at_end(clean=True)
        assert server.wait() == 0


def test_a_body_on_its_way_is_received_and_answered():
    with Server("srv_shapes:app") as server, server.client() as client, server.client() as head:
        client.send(b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n" + bytes(1000))
        head.send(b"GET / HTTP/1.1\r\n")
        told(server, "/process")
        begin_to_stop(server, signal.SIGTERM)
        assert head.ask(b"Host: t\r\n\r\n").body == b"pong"
        head.at_end(clean=True)
        answer = client.ask(bytes(999_000))
        assert answer.status == 200
        assert answer.connection == {"close"}
        client.at_end(clean=True)
        assert server.wait() == 0


def test_a_pipelined_request_behind_the_last_answer_is_not_begun(tmp_path):
    gate = tmp_path / "gate"
    with Server("srv_shapes:app") as server, server.client() as client:
        client.send(request(f"/wait?gate={gate}") + request("/?behind"))
        await_waiting(server, str(gate), 1)
        begin_to_stop(server, signal.SIGTERM)
        gate.touch()
        answer = client.response()
        assert answer.connection == {"close"}
        client.at_end()
        assert server.wait() == 0


@pytest.mark.parametrize("number", STOPS)
def test_a_second_signal_stops_now(number):
    with Server("srv_shapes:app") as server, asking(server, "/wait?gate=/nowhere/never") as client:
        await_waiting(server, "/nowhere/never", 1)
        begin_to_stop(server, number)
        assert server.process.poll() is None
        # Another one: the same one again at once would count as the first.
        server.send_signal(next(each for each in STOPS if each != number))
        client.at_end()
        server.wait()
        assert "stopping now" in server.log
        assert "1 request did not finish in time" in server.log


def test_graceful_timeout_cuts_what_hangs_and_says_so():
    with (
        Server("srv_shapes:app", graceful_timeout=0.5) as server,
        asking(server, "/wait?gate=/nowhere/never") as running,
        asking(server, "/generator?size=100000000&block=1000&key=k") as stuck,
        server.client() as half,
    ):
        half.send(b"GET / HTTP/1.1\r\nHost")
        stuck.head()
        await_waiting(server, "/nowhere/never", 1)
        server.send_signal(signal.SIGTERM)
        running.at_end()
        half.at_end()
        stuck.rest()
        server.wait()
        assert "did not finish in time" in server.log


def test_connections_that_wait_to_be_accepted_are_answered_or_refused_but_never_left():
    # More than are accepted in one round, connected and asking when the signal comes.
    with Server("srv_shapes:app") as server, ExitStack() as stack:
        told(server, "/process")
        worker = server.pid
        os.kill(worker, signal.SIGSTOP)
        clients = [stack.enter_context(asking(server, "/")) for _ in range(200)]
        server.send_signal(signal.SIGTERM)
        os.kill(worker, signal.SIGCONT)
        answered = 0
        for client in clients:
            if not client.has_ended():
                assert client.response().body == b"pong"
                answered += 1
        assert server.wait() == 0
        assert answered == 200, "requests that had arrived before the signal were thrown away"


def test_an_embedded_server_that_cuts_connections_leaves_no_descriptor():
    import tailrace

    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "4")])
        return [b"pong"]

    def cycle():
        with ExitStack() as clients:
            with tailrace.serve_in_thread(app, graceful_timeout=0.1) as server:
                half = request("/", "Content-Length: 5") + b"ab"
                for sent in [b"GET / HTTP/1.1\r\nHo", half, b""]:
                    client = clients.enter_context(socket.create_connection(server.address, 5))
                    client.sendall(sent)
                with socket.create_connection(server.address, 5) as client:
                    client.sendall(request("/"))
                    assert client.recv(100)

    cycle()
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(5):
        cycle()
    eventually(lambda: threading.active_count() <= threads, "the threads have ended")
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, "descriptors closed")


NEVER = "/wait?gate=/nowhere/never"


def entries(path):
    """The access log, as objects."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def named(log):
    """The requests that the log names as cut, with their seconds."""
    lines = re.findall(r"(?:\d+|further) requests? did not finish in time: (.*?)(?:; \d+ more)?$", log, re.MULTILINE)
    return [found for line in lines for found in re.findall(r"(\S+ \S+) \((\d+\.\d{3}) s\)", line)]


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--workers", "2")], ids=" ".join)
@pytest.mark.parametrize("twice", [False, True], ids=["late", "twice"])
def test_each_request_that_is_cut_is_logged_once_and_named(tmp_path, arguments, twice):
    if "--gevent" in arguments:
        pytest.importorskip("gevent")
    path = tmp_path / "log"
    options = {"access_log": path, "access_log_format": "json", "graceful_timeout": 30 if twice else 0.5}
    with Server("srv_shapes:app", *arguments, **options) as server, ExitStack() as stack:
        stack.enter_context(asking(server, NEVER + "&name=a"))
        slow = stack.enter_context(reading(server, "/generator?size=100000000&block=1000"))
        slow.head()
        upload = stack.enter_context(server.client())
        upload.send(b"POST /body?upload HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\nabc")
        # It has been read when the one behind it is answered.
        assert server.get("/").body == b"pong"
        eventually(lambda: sum(told(server, "/seen?gate=/nowhere/never") for _ in range(4)), "the request in flight")
        server.send_signal(signal.SIGTERM)
        if twice:
            eventually(lambda: not reachable(server.address), "the stop")
            server.send_signal(signal.SIGINT)
        assert server.wait() == 0
        log = server.log
    cut = ["GET " + NEVER + "&name=a", "GET /generator?size=100000000&block=1000", "POST /body?upload"]
    found = [entry for entry in entries(path) if entry["ending"] != "complete"]
    assert sorted(f"{entry['method']} {entry['target']}" for entry in found) == sorted(cut)
    assert {entry["ending"] for entry in found} == {"cut"}
    (waiting,) = [entry for entry in found if entry["target"].startswith("/wait")]
    assert (waiting["status"], waiting["client"], waiting["path"]) == (None, "127.0.0.1", "/wait")
    (stream,) = [entry for entry in found if entry["target"].startswith("/generator")]
    assert stream["status"] == 200
    assert stream["bytes"] > 0
    assert sorted(request for request, _ in named(log)) == sorted(cut)
    if not twice:
        times = [entry["duration_ms"] / 1000 for entry in (waiting, stream)]
        times += [float(seconds) for request, seconds in named(log) if request.startswith("GET")]
        assert all(seconds >= 0.5 for seconds in times)


def test_at_most_twenty_are_named_in_a_line_and_all_are_named():
    with Server("srv_shapes:app", threads=30, graceful_timeout=0.2) as server, ExitStack() as stack:
        for number in range(25):
            stack.enter_context(asking(server, f"{NEVER}&name={number}"))
        await_waiting(server, "/nowhere/never", 25)
        assert server.stop() == 0
        assert re.search(r"WARNING: 25 requests did not finish in time: .*; 5 more\n", server.log)
        found = [request for request, _ in named(server.log)]
    assert sorted(found) == sorted(f"GET {NEVER}&name={number}" for number in range(25))


def test_a_request_that_debug_cuts_is_logged_once_and_named(tmp_path):
    path, entered = tmp_path / "log", tmp_path / "entered"
    target = f"/sleeps?entered={entered}"
    options = {"access_log": path, "access_log_format": "json"}
    with Server("srv_waits:app", "--debug", **options) as server, asking(server, target) as client:
        eventually(entered.exists, "the application")
        # CPython runs no handler of a signal that arrives just before the sleep begins.
        stat = Path(f"/proc/{server.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "the sleep of the main thread")
        server.send_signal(signal.SIGTERM)
        eventually(lambda: "finishing the requests in flight" in server.log, "the first signal")
        server.send_signal(signal.SIGINT)
        assert client.response().status == 503
        assert server.wait() == 0
        assert [request for request, _ in named(server.log)] == [f"GET {target}"]
    (entry,) = entries(path)
    assert (entry["target"], entry["status"], entry["ending"]) == (target, 503, "cut")


EMBEDDED = """
import os, signal, sys, threading, urllib.request
import tailrace

def app(environ, start_response):
    entered.set()
    if sys.argv[1] != "thread":
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)

entered = threading.Event()
options = dict(access_log=sys.argv[2], access_log_format="json", graceful_timeout=0.2)
url = "http://127.0.0.1:" + sys.argv[3]

def ask():
    while not entered.is_set():
        try:
            urllib.request.urlopen(url + "/cut?a=b", timeout=60)
        except OSError:
            pass

threading.Thread(target=ask, daemon=True).start()
if sys.argv[1] == "thread":
    with tailrace.serve_in_thread(app, bind=url.removeprefix("http://"), **options):
        entered.wait()
    os._exit(0)
tailrace.run(app, bind=url.removeprefix("http://"), **options)
if sys.argv[1] == "fails":
    raise ValueError("the program's own")
"""


@pytest.mark.parametrize(("kind", "status"), [("thread", 0), ("run", 0), ("fails", 1)])
def test_an_embedded_server_logs_and_names_what_it_cuts(tmp_path, kind, status):
    path = tmp_path / "log"
    address = free_address()
    command = [sys.executable, "-c", EMBEDDED, kind, str(path), str(address.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status, ended.stderr
    assert re.search(r"1 request did not finish in time: GET /cut\?a=b \(\d\.\d{3} s\)\n", ended.stderr), ended.stderr
    (entry,) = entries(path)
    assert (entry["target"], entry["ending"], entry["status"]) == ("/cut?a=b", "cut", None)


@pytest.mark.parametrize(("graceful", "then"), [(30, "finishing the requests in flight"), (0, "stopping now")])
def test_a_server_serves_on_for_its_shutdown_delay_and_is_not_ready(graceful, then):
    status, agent = free_address(), free_address()
    options = {"shutdown_delay": 2, "graceful_timeout": graceful, "status": status, "haproxy_agent": agent}
    with Server("srv_processes:app", "--workers", "1", **options) as server:
        assert server.logged("worker 1 (pid ")
        server.send_signal(signal.SIGTERM)
        assert server.logged("SIGTERM: serving for another 2 s (--shutdown-delay)")
        # The log of this line may be read before the status process has been told.
        eventually(lambda: told_by(agent) == "drain\n", "the agent drains")
        assert told_by(status, b"GET /ready HTTP/1.0\r\n\r\n").startswith("HTTP/1.1 503 ")
        server.send_signal(signal.SIGHUP)
        with asking(server, "/") as client:
            response = client.response()
            assert (response.status, response.connection) == (200, set()), "the connection is kept"
        assert server.wait() == 0
    assert f"--shutdown-delay is over: {then}" in server.log
    assert "SIGHUP" not in server.log


def told_by(address, request=b""):
    with address.connect() as sock:
        sock.sendall(request)
        return sock.makefile().read()


def test_an_interrupt_has_no_shutdown_delay():
    with Server("srv_processes:app", "--workers", "1", shutdown_delay=300) as server:
        assert told(server, "/")["pid"]
        assert server.stop(signal.SIGINT) == 0
    assert "shutdown-delay" not in server.log
