"""An application that forks: the child does not serve, and ends when it returns from the code of the application."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from harness.greenlets import GEVENT
from harness.server import Server
from server.probes import asking, at_once, eventually, request, told

WAYS = {
    "threads": (),
    "one thread": ("--threads", "1"),
    "debug": ("--debug",),
    "workers": ("--workers", "2"),
    "streams": ("--stream-body",),
    "gevent": ("--gevent",),
}


@pytest.fixture(scope="module", params=WAYS)
def server(request):
    if GEVENT and request.param in ("debug", "gevent"):
        pytest.skip("is the same, or does not go with --gevent")
    with Server("srv_forks:app", *WAYS[request.param], "--access-log", "-") as server:
        yield server


def answers(server, target, count=3):
    """What each of some requests on one connection comes to; nothing unasked lies between or behind them."""
    with server.client() as client:
        found = []
        for _ in range(count):
            found.append(json.loads(client.ask(request(target)).body))
            assert client.ask(request("/")).body == b"pong"
        assert client.ask(request("/", "Connection: close")).body == b"pong"
        client.at_end()
        return found


@pytest.mark.nightly(gate=20)
@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/return", 0),
        ("/exit", 0),
        ("/exit?code=3", 3),
        ("/exit?code=true", 1),
        ("/exit?code=-1", 255),
        ('/exit?code="for+a+reason"', 1),
        ("/raise", 1),
        ("/interrupt", 130),
        ("/twice", 4),
        ("/thread", 0),
    ],
)
def test_a_child_that_leaves_the_application_ends_and_answers_nothing(server, target, status):
    assert [each["status"] for each in answers(server, target)] == [status] * 3


@pytest.mark.parametrize(("target", "status"), [("/generator", 0), ("/generator-end", 0), ("/generator-raise", 1)])
def test_a_child_that_leaves_a_generator_ends(server, target, status):
    assert answers(server, target) == [[status]] * 3


@pytest.mark.parametrize("how", ["multiprocessing", "subprocess"])
def test_children_that_do_not_return_into_the_server_end_by_themselves(server, how):
    if "--gevent" in server.command:
        pytest.skip("in tests/gevent/test_greenlet_forks.py")
    assert answers(server, f"/{how}") == [7] * 3


def test_what_a_child_says_at_its_end_is_said_once(server):
    before = len(server.log)
    answers(server, "/raise", 1)
    answers(server, '/exit?code="for+a+reason"', 1)
    answers(server, "/return", 1)
    # The lines of their requests come last: the access log has a thread of its own.
    for line in ('"GET /raise HTTP/1.1" 200', '"GET /return HTTP/1.1" 200'):
        eventually(lambda: line in server.log[before:], line)  # noqa: B023
    said = server.log[before:]
    assert said.count("RuntimeError: in the child") == 1
    assert said.count("for a reason\n") == 1
    assert said.count("the child's last words") == 1
    # The lines of its parent's requests are its parent's.
    assert said.count('"GET /raise HTTP/1.1"') == 1
    assert "exception in the application" not in said


def test_use_of_the_connection_in_a_forked_child_is_an_error(server):
    tried = json.loads(answers(server, "/tries", 1)[0]["said"])
    assert tried.pop("input") == "b''"
    assert {name: error.partition(" was used")[0] for name, error in tried.items()} == {
        "write": "RuntimeError: write()",
        "delivery": "RuntimeError: tailrace.delivery",
        "client_disconnected": "RuntimeError: tailrace.client_disconnected",
        "set_deadline": "RuntimeError: tailrace.set_deadline",
    }


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_a_body_is_read_by_both_unless_it_is_still_with_the_client(server, size):
    # In memory, and in a file, whose position both would share.
    with server.client() as client:
        client.send(f"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode())
        read = json.loads(client.ask(b"x" * size).body)
    has_come = "--stream-body" not in server.command
    assert read["parent"] == size
    assert read["child"] in ([str(size)] if has_come else ["", str(size)])


def test_a_forked_child_cannot_read_a_streamed_body(server):
    if "--stream-body" not in server.command:
        pytest.skip("the body comes first")
    with server.client() as client:
        client.send(b"POST /tries HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
        # The child has tried before the first byte of the body comes.
        tried = json.loads(json.loads(client.response().body)["said"])
    assert tried["input"].startswith("RuntimeError: wsgi.input was used in a process")


def test_a_child_has_nothing_of_the_server(server):
    with ExitStack() as stack:
        # Clients that are connected while it is forked.
        idle = [stack.enter_context(server.client()) for _ in range(5)]
        for client in idle:
            assert client.ask(request("/")).body == b"pong"
        with staying(server) as pid:
            for client in idle:
                assert client.ask(request("/", "Connection: close")).body == b"pong"
                client.at_end()
            # gevent's own pipes and queues are made anew when the child's hub first runs.
            kinds = ("socket:",) if "--gevent" in server.command else ("socket:", "pipe:", "anon_inode:[event")
            eventually(lambda: shared_with(pid, server.pid, kinds) == set(), "nothing is shared")


@pytest.mark.parametrize("arguments", [pytest.param((), id="threads"), pytest.param(("--gevent",), id="gevent")])
def test_a_child_has_no_file_of_the_server(tmp_path, arguments):
    log = tmp_path / "access.log"
    with (
        Server("srv_forks:app", *arguments, access_log=log, client_memory="1MiB") as server,
        server.client() as client,
    ):
        # Half a body, in a temporary file.
        client.send(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 400000\r\n\r\n" + bytes(200_000))
        ours = {target_of(server.pid, number) for number in range(3)}
        eventually(lambda: any("(deleted)" in each for each in opened(server.pid) - ours), "a temporary file")
        with staying(server) as pid:
            eventually(lambda: shared_with(pid, server.pid, ("/",)) == set(), "nothing is shared")
        assert client.ask(bytes(200_000)).status == 200
        server.send_signal(signal.SIGHUP)
    assert '"POST / HTTP/1.1" 200' in log.read_text()


@contextmanager
def staying(server):
    """A child of the application that stays in it; its number."""
    pid = told(server, "/descriptors?wait=no")
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def shared_with(pid, parent, kinds):
    """What of these kinds a process has in common with its parent, but for the standard streams, and for what both have
    from us."""
    standard = {target_of(parent, number) for number in range(3)}
    of_both = opened(pid) & opened(parent)
    return {each for each in of_both - standard - opened(os.getpid()) if each.startswith(kinds)}


def opened(pid):
    return {target_of(pid, entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def target_of(pid, number):
    try:
        link = os.readlink(f"/proc/{pid}/fd/{number}")
        if not link.startswith("anon_inode:"):
            return link
        # These have no number of their own, but what they count or wait for tells them apart.
        return link + Path(f"/proc/{pid}/fdinfo/{number}").read_text()
    except FileNotFoundError:
        return ""


def test_a_signal_that_ends_a_child_does_not_end_its_parent(server):
    for each in answers(server, "/signal"):
        assert each == {"status": -signal.SIGTERM, "said": json.dumps(["<Handlers.SIG_DFL: 0>"] * 2)}
    assert server.process.poll() is None


def test_a_child_may_serve_by_itself(server):
    if "--gevent" in server.command:
        pytest.skip("its threads would be greenlets")
    assert answers(server, "/server", 2) == [{"status": 0, "said": "of a server of its own"}] * 2


def test_clients_are_served_while_requests_fork(server):
    # Children that go on serving take connections and leave them hanging.
    statuses = []

    def ask():
        for target in ("/exit", "/", "/raise", "/return"):
            statuses.append(server.get(target).status)

    at_once(*[ask] * 10)
    assert statuses == [200] * 40


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("way", [way for way in WAYS if not (GEVENT and way in ("debug", "gevent"))])
def test_a_child_does_not_hold_the_port(way):
    with Server("srv_forks:app", *WAYS[way]) as server, staying(server):
        assert server.stop() == 0
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.address.port), timeout=5):
            pass


@pytest.mark.parametrize("arguments", [(), ("--preload",), ("--debug",), ("--gevent",)])
def test_a_child_of_the_loading_application_is_no_second_server(tmp_path, arguments):
    (tmp_path / "forks_early.py").write_text(
        "import os\n"
        "pid = os.fork()\n"
        "if pid:\n"
        "    status = os.waitid(os.P_PID, pid, os.WEXITED).si_status\n"
        "else:\n"
        "    print('the child goes on', flush=True)\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [])\n"
        "    return [str(status).encode()]\n"
    )
    with Server("forks_early:app", *arguments, directory=tmp_path) as server:
        assert server.get("/").body == b"0"
        assert server.log.count("listening on") <= 1
        if "--debug" not in arguments:
            assert len(server.workers()) == 1


def test_a_greenlet_that_did_not_fork_answers_its_client_in_the_parent_alone():
    with Server("srv_greenlets:app", *(() if GEVENT else ("--gevent",))) as server:
        with ExitStack() as stack:
            others = [stack.enter_context(asking(server, f"/wait?gate=forked&key={number}")) for number in range(5)]
            eventually(lambda: told(server, "/seen?gate=forked") == 5, "all wait")
            # The child lets its hub run, in which the others are, too.
            assert json.loads(server.get("/fork?how=os").body) == 7
            told(server, "/open?gate=forked")
            for other in others:
                assert other.response().status == 200
