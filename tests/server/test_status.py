"""The status process: it answers while workers are stuck, hung, dead, replaced or draining, and nobody waits for it."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from harness.addresses import Address, free_address
from harness.held import Stream, holder_process
from harness.operated import Checking, Operated, operating
from harness.server import Server, children
from harness.status import ask, document, is_ready, metrics, reachable, status_process
from harness.wire import Client
from server.probes import asking, eventually, in_flight, meanwhile, told, waiting

APP = "srv_processes:app"


def ready(address):
    response = ask(address, "/ready")
    return response.status, response.body.decode().rstrip("\n")


@contextlib.contextmanager
def start(*arguments, at=None, **options):
    """A server, and where it shows its status."""
    at = at or free_address()
    with Server(APP, *arguments, status=at, **options) as server:
        yield server, at


def line(agent):
    """What the agent tells HAProxy."""
    with agent.connect() as client:
        return b"".join(iter(lambda: client.recv(100), b"")).decode().rstrip("\n")


def says(agent, text, deadline=30.0):
    eventually(lambda: line(agent) == text, f"the agent says {text}", deadline)


def serving(at, count=1):
    eventually(lambda: [each["state"] for each in document(at)["workers"]] == ["serving"] * count, "workers serve")


def test_the_status_process_opens_the_log_again_after_a_rotation(tmp_path):
    path = tmp_path / "log"
    with start(log=path) as (server, at):
        serving(at)
        folder = f"/proc/{status_process(server)}/fd"

        def open_files():
            # A link to a file that is closed meanwhile is its own path.
            return {os.path.realpath(f"{folder}/{name}") for name in os.listdir(folder)}

        assert str(path) in open_files()
        path.rename(tmp_path / "log.1")
        server.send_signal(signal.SIGUSR1)
        eventually(lambda: {str(path), str(tmp_path / "log.1")} & open_files() == {str(path)}, "the new file")


def test_a_server_that_serves_is_healthy_and_ready():
    with start("--workers", "4") as (server, at):
        serving(at, 4)
        assert (ask(at, "/health").status, ready(at)) == (200, (200, "ready"))
        assert told(server, "/")["parent"] == server.process.pid
        found = document(at)
        assert (found["application"], found["master"], found["ready"]) == (APP, server.process.pid, True)
        assert found["listeners"] == [server.url]
        assert {each["pid"] for each in found["workers"]} == set(children(server.process.pid)) - {
            status_process(server)
        }
        assert all(each["rss_bytes"] > 1 << 20 for each in found["workers"])
        eventually(lambda: document(at)["totals"]["requests"] == 1, "the request is counted")
        assert metrics(at)["tailrace_workers{serving}"] == 4
    assert server.log.count("status on http://") == 1


def test_responses_of_static_files_have_a_counter_of_their_own(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with start("--workers", "1", "--static", f"/assets={tmp_path}") as (server, at):
        statuses = [server.get(f"/assets/{name}").status for name in ("a.txt", "a.txt", "no.txt")]
        assert statuses == [200, 200, 404]
        assert server.get("/").status == 200
        for name, count in (("static", 3), ("requests", 1)):
            eventually(lambda name=name, count=count: document(at)["totals"][name] == count, f"{count} {name}")
        assert document(at)["totals"]["static"] == 3
        assert metrics(at)["tailrace_static_responses_total"] == 3


@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--preload",)], ids=" ".join)
def test_held_connections_are_shown_and_looking_at_them_starts_no_process(arguments):
    at = free_address()
    with Server("srv_held:application", *arguments, status=at) as server:
        serving(at)
        assert document(at)["held"] is None
        assert not any(name.startswith("tailrace_held") for name in metrics(at))
        assert holder_process(server.process.pid) is None
        with Stream(server.address, "/hold/news/weather") as one, Stream(server.address, "/hold/news") as two:
            eventually(lambda: (document(at)["held"] or {}).get("connections") == 2, "both connections are shown")
            for number in range(3):
                told(server, f"/publish/news?first={number}")
                assert [one.event()["data"], two.event()["data"]] == [str(number)] * 2
            eventually(lambda: document(at)["held"]["delivered"] == 6, "what was sent is counted")
            held = document(at)["held"]
            assert held["pid"] == holder_process(server.process.pid)
            assert (held["channels"], held["published"], held["closed"]["left"]) == (2, 3, 0)
            assert held["largest"] == [
                {"channel": "news", "connections": 2},
                {"channel": "weather", "connections": 1},
            ]
            found = metrics(at)
            assert (found["tailrace_held_connections"], found["tailrace_published_deliveries_total"]) == (2, 6)
            assert found["tailrace_responses_delivered_total{held}"] == 2
        eventually(lambda: metrics(at)["tailrace_held_closed_total{left}"] == 2, "both have left")
        assert document(at)["restarts"] == dict.fromkeys(document(at)["restarts"], 0)


def test_a_stopped_holder_delays_no_page_for_long():
    at = free_address()
    with Server("srv_held:application", status=at) as server, Stream(server.address, "/hold/news"):
        eventually(lambda: (document(at)["held"] or {}).get("connections") == 1, "the connection is shown")
        holder = holder_process(server.process.pid)
        os.kill(holder, signal.SIGSTOP)
        try:
            eventually(lambda: document(at)["held"]["age_seconds"] > 1.0, "its last figures")
            assert (document(at)["held"]["connections"], document(at)["ready"]) == (1, True)
        finally:
            os.kill(holder, signal.SIGCONT)
        eventually(lambda: document(at)["held"]["age_seconds"] < 1.0, "its figures")
        os.kill(holder, signal.SIGKILL)
        eventually(lambda: document(at)["held"] is None, "there is none")
        assert "ERROR: the process that holds connections" in server.log


def test_it_answers_while_all_threads_are_stuck(tmp_path):
    with start(threads=2, hang_timeout=0, graceful_timeout=1) as (server, at), contextlib.ExitStack() as stack:
        for each in range(5):
            stack.enter_context(asking(server, f"/wait?gate={tmp_path}/gate&entered={tmp_path}/{each}"))
        eventually(lambda: document(at)["totals"]["queued"] == 3, "requests wait")
        assert document(at)["totals"]["running"] == 2
        # Busy is not broken: a prober that took a busy server out would leave more for the others.
        # It may have served before the master knew that it is ready.
        eventually(lambda: ready(at) == (200, "ready"), "readiness")
        (tmp_path / "gate").touch()


def test_a_worker_whose_interpreter_is_held_is_hung_and_replaced(tmp_path):
    agent = free_address()
    with start("--hang-timeout", "6", haproxy_agent=agent) as (server, at):
        # A worker may answer before the master has noted that it serves.
        serving(at)
        says(agent, "ready up 100%")
        with in_flight(server, "/stuck?keeps=1", tmp_path / "entered") as client:
            assert line(agent).startswith("ready up ")
            eventually(lambda: ready(at)[0] == 503, "it is not ready")
            assert ready(at) == (503, "1 of 1 workers are hung, and none is serving")
            says(agent, "down #1 of 1 workers are hung, and none is serving")
            (worker,) = document(at)["workers"]
            assert (worker["state"], worker["counters"]["running"]) == ("hung", 1)
            assert ask(at, "/health").status == 200
            eventually(lambda: ready(at)[0] == 200, "a successor serves")
            says(agent, "ready up 100%")
            eventually(lambda: document(at)["restarts"]["hang"] == 1, "the hang is counted")
            assert document(at)["responses"]["endings"]["broken"] == 1
            client.rest()


def test_requests_that_are_lost_in_a_crash_are_counted_as_broken(tmp_path):
    with start("--threads", "4") as (server, at), contextlib.ExitStack() as stack:
        pid = told(server, "/")["pid"]
        for each in range(3):
            stack.enter_context(waiting(server, tmp_path, str(each)))
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: document(at)["restarts"]["crash"] == 1, "the crash is counted")
        endings = document(at)["responses"]["endings"]
        assert (endings["complete"], endings["broken"]) == (1, 3)


def test_a_killed_worker_is_counted_and_its_counters_stay():
    with start() as (server, at):
        for _ in range(5):
            first = told(server, "/")["pid"]
        eventually(lambda: metrics(at)["tailrace_requests_total"] == 5, "the requests are counted")
        with meanwhile(lambda: metrics(at)["tailrace_requests_total"]) as seen:
            for turn in range(1, 4):
                os.kill(first, signal.SIGKILL)
                eventually(lambda turn=turn: metrics(at)["tailrace_worker_restarts_total{crash}"] == turn, "counted")
                eventually(lambda: ready(at)[0] == 200, "a successor serves")
                first = told(server, "/")["pid"]
                count = 5 + turn
                eventually(lambda count=count: metrics(at)["tailrace_requests_total"] == count, "it is counted")
        assert seen == sorted(seen)


def test_a_reload_is_ready_throughout_and_counted():
    with start("--workers", "2") as (server, at):
        serving(at, 2)
        with meanwhile(lambda: ready(at)) as seen:
            server.send_signal(signal.SIGHUP)
            assert server.logged("reload complete")
            eventually(lambda: document(at)["restarts"]["reload"] == 2, "the replacements are counted")
        assert set(seen) == {(200, "ready")}
        assert {each["generation"] for each in document(at)["workers"]} == {2}


def test_it_is_not_ready_while_it_starts_and_while_it_drains(tmp_path):
    (tmp_path / "slow").touch()
    agent = free_address()
    with start(environment={"STATE": str(tmp_path)}, haproxy_agent=agent) as (server, at):
        assert ready(at) == (503, "starting: no worker is ready yet")
        assert line(agent) == "down #starting: no worker is ready yet"
        (tmp_path / "slow").unlink()
        eventually(lambda: ready(at)[0] == 200, "a worker serves")
        says(agent, "ready up 100%")
        with waiting(server, tmp_path) as client:
            server.send_signal(signal.SIGTERM)
            eventually(lambda: ready(at)[0] == 503, "it drains")
            assert ready(at) == (503, "draining: the server is finishing its requests before it stops")
            says(agent, "drain")
            assert ask(at, "/health").status == 200
            assert [each["state"] for each in document(at)["workers"]] == ["draining"]
            (tmp_path / "gate").touch()
            assert client.response().body == b"waited"
        assert server.wait() == 0
    assert not reachable(at) and not reachable(agent)


def test_a_signal_to_every_process_leaves_it_until_the_end(tmp_path):
    with start() as (server, at), waiting(server, tmp_path) as client:
        for each in (*children(server.process.pid), server.process.pid):
            os.kill(each, signal.SIGTERM)
        eventually(lambda: ready(at)[0] == 503, "it drains")
        (tmp_path / "gate").touch()
        assert client.response().body == b"waited"
        assert server.wait() == 0


def test_it_is_replaced_when_it_is_killed_and_ends_with_its_master():
    agent = free_address()
    with start(haproxy_agent=agent) as (server, at):
        serving(at)
        first = status_process(server)
        os.kill(first, signal.SIGKILL)
        assert server.logged(f"the status process (pid {first}) was killed by SIGKILL; replacing it")
        # Connections wait in the queue meanwhile.
        assert ready(at) == (200, "ready")
        says(agent, "ready up 100%")
        found = status_process(server)
        assert found not in (None, first)
        assert server.log.count("ready in") == 1
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        eventually(lambda: not Path(f"/proc/{found}/fd/0").exists(), "the end of the status process")


def test_a_stopped_status_process_holds_nobody_up():
    with start("--workers", "2") as (server, at):
        serving(at, 2)
        os.kill(status_process(server), signal.SIGSTOP)
        server.send_signal(signal.SIGHUP)
        assert server.logged("reload complete")
        assert told(server, "/")["pid"]
        assert server.stop() == 0


def test_it_has_no_socket_but_its_own():
    with start() as (server, at):
        serving(at)
        found = status_process(server)

        def listening():
            tables = "\n".join(Path(f"/proc/{found}/net/{name}").read_text() for name in ("tcp", "tcp6"))
            rows = [line.split() for line in tables.splitlines()]
            ports = {row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3:4] == ["0A"]}
            links = [os.readlink(path) for path in Path(f"/proc/{found}/fd").iterdir() if path.is_symlink()]
            return {ports[inode] for link in links if (inode := link[8:-1]) in ports}

        assert listening() == {at.port}
        for worker in document(at)["workers"]:
            found = worker["pid"]
            assert listening() == {server.address.port}


@pytest.mark.parametrize("option", ["status", "haproxy-agent"])
def test_an_address_in_use_is_a_warning(option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with Server(APP, f"--{option}", f"127.0.0.1:{taken.getsockname()[1]}") as server:
            assert told(server, "/")["pid"]
    assert server.log.count(f"WARNING: --{option}: cannot listen on ") == 1
    assert f"or choose another port with --{option}; the server starts without it" in server.log


def test_a_unix_socket_has_the_mode_and_goes_at_the_end(tmp_path):
    path = tmp_path / "status.sock"
    with start("--umask", "177", at=Address(path=str(path))) as (_, at):
        serving(at)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert document(at)["requests"] == []
    assert not path.exists()


def test_other_methods_and_hostile_requests_are_refused_and_others_answered():
    with start() as (server, at):
        serving(at)
        found = status_process(server)
        assert ask(at, "/nothing").status == 404
        assert ask(at, "/status.json/").status == 404
        response = ask(at, "/ready", "POST")
        assert (response.status, response["Allow"]) == (405, "GET, HEAD")
        assert ask(at, "/metrics", "HEAD").status == 200
        for hostile, status in (
            (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
            (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
            (b"POST /ready HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        ):
            with Client(at) as client:
                assert client.ask(hostile).status == status, hostile[:40]
        # Requests that never become complete.
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(at.connect()).send(b"GET /rea")
            eventually(lambda: ready(at) == (200, "ready"), "an answer beside them")
        assert status_process(server) == found
    assert "ERROR" not in server.log, server.log


def test_every_request_is_counted_over_reloads(tmp_path):
    (tmp_path / "app.py").write_text(
        "def app(environ, start_response):\n"
        "    number = int(environ['PATH_INFO'][1:])\n"
        "    body = b'%d.' % number * (1 + number % 7 * 997)\n"
        "    start_response('200 OK', [('Content-Length', str(len(body)))])\n"
        "    return [body]\n"
    )
    at = free_address()
    with Operated(tmp_path, "app:app", "--workers", "2", "--status", at.bind) as server:
        with Checking(server.serves().address) as clients:
            for turn in range(1, 6):
                clients.go_on()
                server.tell(signal.SIGHUP)
                server.logged("reload complete", turn)
            server.until(lambda: server.log.count("has ended") == 10, "the end of the old workers")
        assert not clients.faults
        answered = sum(clients.counts.values())
        server.until(lambda: document(at)["totals"]["requests"] == answered, f"{answered} requests are counted")
        server.until(lambda: document(at)["responses"]["classes"]["2xx"] == answered, "their responses, too")
        server.stop()


RESPONSES = """
import tempfile, time

def app(environ, start_response):
    status, _, kind = environ["PATH_INFO"][1:].partition("/")
    start_response(status + " Said", [("Content-Type", "text/plain")])
    if kind == "file":
        file = tempfile.TemporaryFile()
        file.write(b"f" * 100_000)
        file.seek(0)
        return environ["wsgi.file_wrapper"](file)
    if kind == "blocks":
        return (b"b" * 700 for _ in range(2))
    if kind == "slow":
        time.sleep(0.25)
    return [b"l" * 1000]
"""


def test_the_figures_of_responses_are_those_of_what_was_asked(tmp_path):
    (tmp_path / "app.py").write_text(RESPONSES)
    at = free_address()
    with operating(tmp_path, "app:app", "--status", at.bind) as server:
        for target, times in (
            *(("/200/list", 4), ("/201/blocks", 3), ("/200/file", 2)),
            *(("/302/list", 1), ("/404/list", 2), ("/500/slow", 1)),
        ):
            for _ in range(times):
                assert server.get(target).status == int(target[1:4])
        with Client(server.address) as client:
            refusal = client.ask(b"GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n")
            assert refusal.status == 400
        eventually(lambda: document(at)["responses"]["writes"]["count"] == 14, "all are counted")
        found = document(at)
        responses = found["responses"]
        assert responses["classes"] == {"none": 0, "1xx": 0, "2xx": 9, "3xx": 1, "4xx": 3, "5xx": 1}
        assert responses["endings"] == {
            "complete": 14,
            "client-disconnected": 0,
            "broken": 0,
            "timed-out": 0,
            "cut": 0,
            "cancelled": 0,
        }
        assert responses["body_bytes"] == 8 * 1000 + 3 * 1400 + 2 * 100_000 + len(refusal.body)
        assert responses["blocks"] == 8 + 3 * 2 + 2
        others = {"none": 0, "coalesced": 0, "compressed": 0, "spilled": 0, "held": 0}
        assert found["paths"] == {"one-write": 9, "direct": 3, "sendfile": 2, **others}
        # Nine went out in one write each; the others needed more than one.
        assert (responses["writes"]["buckets"]["0.0"], responses["writes"]["buckets"]["1.0"]) == (0, 9)
        for name, phase in found["latency"].items():
            # No proxy states when it received a request. Few requests wait for the interpreter or collect garbage.
            counts = [0] if name == "proxied" else range(14) if name in ("interpreter", "gc") else [13]
            assert phase["count"] in counts, name
            assert phase["buckets"]["+Inf"] == phase["count"], name
        total, queued = found["latency"]["total"], found["latency"]["queued"]
        assert found["latency"]["application"]["sum_seconds"] >= 0.25
        assert total["sum_seconds"] >= found["latency"]["application"]["sum_seconds"] + queued["sum_seconds"]
        assert max(count for bound, count in total["buckets"].items() if float(bound) <= 0.25) == 12
        endpoints = {each["endpoint"]: each for each in found["endpoints"]}
        assert sum(each["responses"] for each in endpoints.values()) == 13
        blocks = endpoints["GET /*/blocks"]
        assert (blocks["responses"], blocks["blocks"], blocks["paths"]) == (3, 6, {"direct": 3})
        assert blocks["body_bytes"] == 3 * 1400
        assert endpoints["GET /*/file"]["path"] == "sendfile"
        slow = endpoints["GET /*/slow"]
        assert (slow["failed"], slow["application_seconds"] >= 0.25) == (1, True)
        (broken,) = found["broken"]
        assert (broken["target"], broken["status"], broken["ending"]) == ("/500/slow", 500, "complete")
        assert (broken["application_seconds"] >= 0.25, found["slow"]) == (True, [])
        shown = metrics(at)
        assert shown["tailrace_responses_total{4xx}"] == 3
        assert shown["tailrace_responses_delivered_total{sendfile}"] == 2
        assert shown["tailrace_response_body_bytes_total"] == responses["body_bytes"]
        assert shown["tailrace_response_writes_count"] == 14


TIMES = """
import time

def app(environ, start_response):
    time.sleep(float(environ["QUERY_STRING"] or 0))
    start_response("200 OK", [])
    return [b"done"]
"""


@pytest.mark.parametrize("mode", [(), ("--gevent",), ("--workers", "2")], ids=" ".join)
def test_percentiles_are_within_5_percent_of_what_the_records_measured(tmp_path, mode):
    (tmp_path / "app.py").write_text(TIMES)
    at = free_address()
    with operating(tmp_path, "app:app", *mode, "--slow-request-log", "0.1", "--status", at.bind) as server:
        targets = [f"/?{seconds}" for seconds in (0.13, 0.3, 0.7, 1.05)]
        for target in targets:
            assert server.get(target).status == 200
        eventually(lambda: {each["target"] for each in document(at)["slow"]} >= set(targets), "all are recorded")
        found = document(at)
        measured = sorted(each["total_seconds"] for each in found["slow"])
        buckets = found["latency"]["total"]["buckets"]
        # The slow requests have the last ranks.
        earlier = found["latency"]["total"]["count"] - len(measured)
        for rank, seconds in enumerate(measured, earlier + 1):
            bound = next(float(bound) for bound, count in buckets.items() if count >= rank)
            assert bound == pytest.approx(seconds, rel=0.05)


def test_what_responses_have_cost_and_the_last_broken_ones_outlive_their_worker_and_a_reload_begins_anew(tmp_path):
    (tmp_path / "app.py").write_text(RESPONSES)
    at = free_address()
    with operating(tmp_path, "app:app", "--workers", "1", "--status", at.bind) as server:
        serving(at)
        (killed,) = document(at)["workers"]
        assert [server.get("/200/list").status, server.get("/500/list").status] == [200, 500]
        eventually(lambda: document(at)["broken"], "the broken response is kept")
        os.kill(killed["pid"], signal.SIGKILL)
        eventually(lambda: document(at)["restarts"]["crash"], "its end is counted")
        serving(at)
        assert server.get("/200/list").status == 200
        eventually(lambda: document(at)["endpoints"][0]["responses"] == 3, "all are counted")
        found = document(at)
        (broken,) = found["broken"]
        assert (broken["target"], broken["worker"], broken["pid"]) == ("/500/list", killed["number"], killed["pid"])
        assert found["workers"][0]["pid"] != killed["pid"]
        assert [(each["endpoint"], each["failed"]) for each in found["endpoints"]] == [("GET /*/list", 1)]
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "reload complete" in server.log, "the reload")
        eventually(lambda: len(document(at)["workers"]) == 1, "the old worker has ended")
        assert (document(at)["endpoints"], len(document(at)["broken"])) == ([], 1)


def test_the_last_figures_for_statsd_are_sent_at_the_end():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        with Server(APP, "--workers", "2", statsd=f"127.0.0.1:{receiver.getsockname()[1]}") as server:
            for _ in range(3):
                assert told(server, "/")["pid"]
            assert server.stop() == 0
        receiver.settimeout(0)
        lines = []
        while True:
            try:
                lines += receiver.recv(2000).decode().split("\n")
            except BlockingIOError:
                break
        assert lines.count("tailrace.requests:3|c") == 1
        assert lines.count("tailrace.responses:3|c|#class:2xx") == 1


def test_requests_threads_and_connections_are_shown_by_what_they_do(tmp_path):
    with start(threads=4, hang_timeout=0) as (server, at), server.client() as idle, server.client() as receiving:
        idle.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        receiving.send(b"GET / HT")
        with waiting(server, tmp_path) as client:
            (request,) = document(at)["requests"]
            assert request["target"].startswith("/wait?gate=")
            assert (request["method"], request["worker"], request["phase"]) == ("GET", 1, "running")
            assert request["client"].startswith("127.0.0.1:")
            with waiting(server, tmp_path, "another"):
                states = {"idle": 1, "receiving": 1, "responding": 2, "sending": 0, "closing": 0}
                eventually(lambda: document(at)["connections"] == states, "the states of the connections")
                eventually(lambda: document(at)["threads"]["running"] == 2, "the threads that run")
                threads = document(at)["workers"][0]["threads"]
                assert (threads["leading"], threads["sending"]) == (1, 0)
                shown = metrics(at)
                assert shown["tailrace_connections_by_state{responding}"] == shown["tailrace_running_requests"] == 2
                (tmp_path / "gate").touch()
            assert client.response().body == b"waited"
        eventually(lambda: metrics(at)["tailrace_threads{running}"] == 0, "no thread runs")
        eventually(lambda: document(at)["requests"] == [], "no request in flight")


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_an_upgrade_hands_the_address_over(tmp_path, family):
    (tmp_path / "app.py").write_text(
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Length', '2')])\n"
        "    return [b'ok']\n"
    )
    path, agent = tmp_path / "status.sock", free_address()
    at = free_address() if family == "tcp" else Address(path=str(path))
    with operating(tmp_path, "app:app", "--status", at.bind, "--haproxy-agent", agent.bind) as server:
        eventually(lambda: ready(at)[0] == 200, "it is ready")
        says(agent, "ready up 100%")
        with meanwhile(lambda: (*ready(at), line(agent).removeprefix("ready "))) as seen:
            for _ in range(3):
                before = server.master
                server.tell(signal.SIGUSR2)
                server.logged(f"taken over from process {before}")
                eventually(lambda: document(at)["master"] == server.master, "the new master")
                server.until(lambda before=before: before not in server.processes(), "the old one ends")
        assert set(seen) <= {(200, "ready", f"up {percent}%") for percent in range(1, 101)}
        says(agent, "ready up 100%")
        server.stop()
        assert not path.exists() and not reachable(agent)


def test_run_has_it_too(tmp_path):
    at, bind = free_address(), free_address()
    (tmp_path / "program.py").write_text(
        "import tailrace\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Length', '2')])\n"
        "    return [b'ok']\n"
        f"tailrace.run(app, bind={bind.bind!r}, status={at.bind!r})\n"
    )
    process = subprocess.Popen([sys.executable, tmp_path / "program.py"], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: is_ready(at), "it is ready")
        assert document(at)["application"] == "app"
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


SLOW = 0.05
SECRET = "/pay?page=7&%74oken=s3cr3t;more=s3cr3t&api_key=s3cr3t&api_key=s3cr3t"
SHOWN = "/pay?page=7&%74oken=***;more=***&api_key=***&api_key=***"
FAILS = """
import os, time

def app(environ, start_response):
    while not os.path.exists("gate"):
        time.sleep(0.01)
    raise LookupError("no such report")
"""


@contextlib.contextmanager
def failing(directory, *arguments):
    """A server with one request in flight that has a secret in its query string, and the address of `--status`."""
    (directory / "app.py").write_text(FAILS)
    at = free_address()
    given = ("--workers", "1", "--slow-request-log", str(SLOW), "--access-log", "access", "--status", at.bind)
    with Operated(directory, "app:app", *given, *arguments) as server:
        eventually(lambda: is_ready(at), "the worker serves")
        with Client(server.address) as client:
            client.send(f"GET {SECRET} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            eventually(lambda: document(at)["requests"], "the request in flight")
            yield server, at, client


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ((), SHOWN),
        (("--gevent",), SHOWN),
        (("--debug", "--reload"), SHOWN),
        (("--query-masking", "all"), SHOWN.replace("page=7", "page=***")),
        (("--query-masking", "none"), SECRET),
    ],
)
def test_secrets_in_query_strings_are_shown_nowhere_but_in_the_access_log(tmp_path, mode, shown):
    with failing(tmp_path, *mode) as (server, at, client):
        (request,) = document(at)["requests"]
        assert request["target"] == shown
        for accepted in ("application/json", "text/plain"):
            assert shown in ask(at, "/stacks", "GET", f"Accept: {accepted}").body.decode()
        # With --debug, where a debugger may stop, no request is slow in the log.
        is_logged = "--debug" not in mode
        if is_logged:
            eventually(lambda: f"GET {shown}: slow: it has run for" in server.log, "the line while it runs")
        eventually(lambda: document(at)["requests"][0]["seconds"] > SLOW, "the request has become slow")
        (tmp_path / "gate").touch()
        assert client.response().status == 500
        if is_logged:
            eventually(lambda: f"GET {shown}: slow: done" in server.log, "the line when it is done")
        eventually(lambda: document(at)["broken"], "the record")
        found = document(at)
        assert [found[kind][0]["target"] for kind in ("slow", "broken")] == [shown, shown]
        eventually(lambda: f"GET {shown}: exception in the application" in server.log, "the exception")
        eventually(lambda: SECRET in (tmp_path / "access").read_text(), "the line of the access log")
        pages = [ask(at, page).body.decode() for page in ("/status.json", "/stacks", "/metrics")]
        assert any("s3cr3t" in page for page in (*pages, server.log)) == (shown == SECRET)
        server.stop()


def test_a_worker_that_dies_is_named_with_its_request_without_secrets(tmp_path):
    with failing(tmp_path) as (server, at, _):
        (worker,) = document(at)["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
        eventually(lambda: f"  GET {SHOWN} from" in server.log, "the request that it was running")
        assert "s3cr3t" not in server.log
        (tmp_path / "gate").touch()
