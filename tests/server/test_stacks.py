"""`/stacks` and `tailrace threads`: what every thread does is seen from outside, whatever it waits for."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.addresses import Address, free_address
from harness.programs import tailrace
from harness.server import APPS, Server
from harness.status import answer, ask, document, is_ready
from harness.tools import need_tool
from harness.wire import Client
from server.probes import asking, eventually, reading, request

APP = "srv_waits:app"


@contextlib.contextmanager
def start(*arguments, at=None, **options):
    """A server that is ready, and the address of its status."""
    at = at or free_address()
    with Server(APP, *arguments, status=at, **options) as server:
        eventually(lambda: is_ready(at), "it is ready")
        yield server, at


def threads(at):
    """Those with requests, by the target."""
    (worker,) = answer(at, "/stacks")["workers"]
    assert worker["error"] is None
    return {each["request"]["target"].partition("?")[0]: each for each in worker["threads"] if each["request"]}


def said_by(*arguments, **environment):
    done = tailrace(*arguments, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A server with a thread that sleeps, one that waits for a lock, one for its client, one that computes in C and
    keeps the interpreter, and one that wants it: the address of its status."""
    directory = tmp_path_factory.mktemp("waiting")
    with start("--hang-timeout", "0", "--response-spill", "0", "--threads", "8") as (server, at):
        clients = []
        for way in ("sleeps", "locks", "comes_back"):
            clients.append(asking(server, f"/{way}?entered={directory}/{way}&computes={directory}/computes"))
            eventually((directory / way).exists, f"the request that {way}")
        clients.append(reading(server, "/blocks"))
        eventually(lambda: threads(at).get("/blocks", {}).get("state") == "sending", "its client reads nothing")
        clients.append(asking(server, f"/computes?entered={directory}/computes"))
        eventually((directory / "computes").exists, "the request that computes")
        wants = "waiting for the interpreter"
        eventually(lambda: threads(at)["/comes_back"]["state"] == wants, "another one wants the interpreter")
        yield server, at
        for each in clients:
            each.sock.close()
        # Nothing else ends a thread that keeps the interpreter.
        server.kill()


def test_each_thread_is_shown_with_what_it_waits_for(waiting):
    _, at = waiting
    found = threads(at)
    states = {target: (each["state"], each["holds_interpreter"]) for target, each in found.items()}
    assert states == {
        "/sleeps": ("waiting", False),
        "/locks": ("waiting", False),
        "/blocks": ("sending", False),
        "/computes": ("running", True),
        "/comes_back": ("waiting for the interpreter", False),
    }
    waits = {target: each["waits_for"] for target, each in found.items() if each["waits_for"]}
    assert waits == {"/sleeps": "sleep", "/locks": "lock"}
    inner = {target: each["frames"][:1] for target, each in found.items()}
    assert [frame["function"] for frame in inner["/sleeps"]] == ["sleeps"]
    assert [frame["function"] for frame in inner["/locks"]] == ["locks"]
    assert [frame["function"] for frame in inner["/computes"]] == ["computes"]
    assert [frame["function"] for frame in inner["/comes_back"]] == ["comes_back"]
    source = Path(found["/sleeps"]["frames"][0]["file"])
    assert "time.sleep(" in source.read_text().splitlines()[found["/sleeps"]["frames"][0]["line"] - 1]
    assert [frame["function"] for frame in found["/sleeps"]["frames"]] == ["sleeps", "app"]
    assert found["/blocks"]["request"]["phase"] == "sending"
    assert found["/sleeps"]["request"]["phase"] == "running"


def test_the_requests_are_those_of_the_document_and_threads_without_one_are_idle(waiting):
    server, at = waiting
    found = document(at)
    listed = {each["id"]: each for each in found["requests"]}
    for each in threads(at).values():
        shown, known = each["request"], listed[each["request"]["id"]]
        assert {**shown, "seconds": 0} == {**known, "seconds": 0}
        assert shown["thread"] == each["thread"]
    # One worker can be asked for.
    (worker,) = answer(at, f"/stacks?pid={found['workers'][0]['pid']}")["workers"]
    assert worker["number"] == 1
    others = {each["name"]: each["state"] for each in worker["threads"] if each["request"] is None}
    assert others["MainThread"] == "idle"
    # Threads that run requests have their own names, whether they have a request or not; so have those of the core.
    busy = [each["name"] for each in worker["threads"] if each["request"]]
    assert all(re.fullmatch(r"tailrace-\d", name) for name in busy)
    assert len(set(busy)) == len(busy) == 5
    assert {"tailrace-memory", "tailrace-alone"} <= others.keys()
    assert not any(name.startswith("tailrace-w") for name in others), others
    assert set(others.values()) <= {"idle", "waiting for the interpreter"}, others
    assert ask(at, f"/stacks?pid={server.process.pid}").status == 404


def test_text_is_for_people(waiting):
    _, at = waiting
    for response in (ask(at, "/stacks?format=text"), ask(at, "/stacks", "GET", "Accept: text/plain")):
        assert response["Content-Type"].startswith("text/plain")
        text = response.body.decode()
        assert "computes (" in text
        assert "running, holds the interpreter" in text
    assert ask(at, "/stacks?format=yaml").status == 400


def test_the_command_prints_each_thread(waiting):
    _, at = waiting
    status, out, err = said_by("threads", "--status", at.bind)
    assert (status, err) == (0, "")
    holds = "running, holds the interpreter"
    for state in ("waiting (sleep)", "waiting (lock)", "sending", "waiting for the interpreter", holds):
        assert f": {state}\n    GET /" in out, out
    assert "      sleeps (" in out
    status, out, _ = said_by("threads", "--status", at.bind, "--json")
    assert status == 0
    assert json.loads(out).keys() == {"workers"}
    assert said_by("threads", TAILRACE_STATUS=at.bind)[0] == 0


def test_the_command_reads_a_process_by_its_number(waiting):
    server, at = waiting
    worker = answer(at, "/status.json")["workers"][0]["pid"]
    for pid in (server.process.pid, worker):
        status, out, err = said_by("threads", "--pid", str(pid))
        assert (status, err) == (0, "")
        assert f"worker 1, process {worker}: " in out
        assert "running, holds the interpreter\n      computes (" in out
        assert "use `tailrace threads --status ADDRESS`" in out


def test_a_server_that_is_not_there_is_named_with_the_remedy(tmp_path):
    at = free_address()
    status, _, err = said_by("threads", "--status", at.bind)
    assert status == 1
    assert f"no response from {at.bind}: Connection refused; was the server started with `--status {at.bind}`?" in err
    assert said_by("threads", "--status", f"unix:{tmp_path}/none")[0] == 1
    status, _, err = said_by("threads")
    assert status == 2
    assert "no server address: name" in err
    assert "tailrace app:app --status 127.0.0.1:9000" in err
    assert "process 4194305 does not exist" in said_by("threads", "--pid", "4194305")[2]
    assert "--status or --pid, not both" in said_by("threads", "--pid", "1", "--status", "127.0.0.1:1")[2]


def test_another_server_is_not_taken_for_tailrace():
    with Server("echo:app") as server:
        status, _, err = said_by("threads", "--status", server.address.bind)
        assert status == 1
        assert "is not the --status address of Tailrace" in err


def test_requests_in_greenlets_are_shown_without_stacks_and_a_unix_socket_is_asked_too(tmp_path):
    at = Address(path=str(tmp_path / "status.sock"))
    target = f"/comes_back?entered={tmp_path}/entered&computes={tmp_path}/computes"
    with start("--gevent", at=at) as (server, _), asking(server, target) as client:
        eventually((tmp_path / "entered").exists, "the request")
        (worker,) = answer(at, "/stacks")["workers"]
        assert "kill -URG" in worker["note"]
        (shown,) = [each for each in worker["threads"] if each["request"]]
        assert (shown["state"], shown["name"], shown["frames"]) == ("in a greenlet", "greenlet", [])
        assert any(each["thread"] == shown["thread"] and not each["request"] for each in worker["threads"])
        status, out, _ = said_by("threads", "--status", at.bind)
        assert (status, out.startswith("worker 1, process ")) == (0, True)
        (tmp_path / "computes").touch()
        assert client.response().body == b"ok"


@contextlib.contextmanager
def started_by(*command):
    """A server that this command starts, once it is ready: the process, and the addresses of the server and its status.
    It must end as told."""
    at, address = free_address(), free_address()
    server = [sys.executable, "-m", "tailrace", APP, "--bind", address.bind, "--status", at.bind]
    process = subprocess.Popen([*command, *server, "--graceful-timeout", "0"], cwd=APPS, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: is_ready(at), "it is ready", 60)
        yield address, at
        os.kill(document(at)["master"], signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_worker_permits_the_processes_of_its_master_to_read_it(tmp_path):
    """Yama has to be told so; where there is none, the call is what can be seen."""
    trace = tmp_path / "trace"
    with started_by(need_tool("strace"), "-f", "-e", "trace=prctl", "-o", str(trace)) as (_, at):
        found = document(at)
        (worker,) = found["workers"]
        asked = [line.split(maxsplit=1) for line in trace.read_text().splitlines() if "PR_SET_PTRACER" in line]
        # strace may show only the beginning of a call.
        assert [(int(pid), call.partition(")")[0].partition(" <")[0]) for pid, call in asked] == [
            (worker["pid"], f"prctl(PR_SET_PTRACER, {found['master']}")
        ]


def test_a_refused_read_says_so_and_the_requests_are_shown():
    """The worker has made itself unreadable, as one has that was started as root with --user."""
    # Else root may read everything.
    command = [need_tool("setpriv"), "--bounding-set=-sys_ptrace"] if os.geteuid() == 0 else []
    with started_by(*command) as (address, at), Client(address) as client:
        client.send(request("/hides"))
        eventually(lambda: answer(at, "/stacks")["workers"][0]["error"], "the worker cannot be read")
        (worker,) = answer(at, "/stacks")["workers"]
        assert worker["error"].startswith(f"no permission to read the memory of process {worker['pid']}")
        (shown,) = [each for each in worker["threads"] if each["request"]]
        assert (shown["frames"], shown["holds_interpreter"]) == ([], None)
        assert (shown["request"]["target"], shown["state"]) == ("/hides", "waiting")
        assert "no stacks: no permission" in ask(at, "/stacks?format=text").body.decode()
