"""`tailrace.gevent.dump()` and SIGURG: every greenlet with its request and its stack."""

import os
import re
import signal
from contextlib import ExitStack

from harness.greenlets import dumped, in_requests, on_greenlets
from harness.server import shared
from server.probes import asking, await_waiting, eventually, open_gate

server = shared(on_greenlets)


def test_a_dump_has_every_request_and_groups_the_same_stacks(server):
    # Fails when greenlets are missing, when a stack is the dumper's own, or a thousand stacks are printed one by one.
    with ExitStack() as stack:
        for number in range(40):
            stack.enter_context(asking(server, f"/wait?gate=dump&key={number}"))
        await_waiting(server, "dump", 40)
        other = stack.enter_context(asking(server, "/pause?gate=dump-other&size=5"))
        other.chunk(other.head())
        await_waiting(server, "dump-other", 1)
        text = dumped(server)
        assert text.startswith("greenlets: 42 in requests")
        assert text.count("GET /wait?gate=dump&key=") == 5
        assert re.search(r"\b3[0-9] more", text), "40 requests, of which five are named"
        assert text.count("in pass_gate") == 2
        assert "GET /pause?gate=dump-other&size=5" in text
        assert "in paused" in text
        assert "GET /dump" in text
        assert "from 127.0.0.1:" in text
        # The largest group first.
        assert text.index("gate=dump&") < text.index("gate=dump-other")
        open_gate(server, "dump")
        open_gate(server, "dump-other")
    eventually(lambda: in_requests(server) == 0, "all have ended")
    assert "gate=dump" not in dumped(server)


def test_greenlets_of_the_application_are_in_it(server):
    server.get("/spawned?gate=refreshing")
    text = dumped(server)
    assert "refresher" in text
    assert "of the application" in text
    open_gate(server, "refreshing")
    eventually(lambda: "refresher" not in dumped(server), "its end")


def test_sigurg_to_the_master_writes_every_workers_greenlets_to_the_log():
    # Fails when the master dies of it, or keeps it to itself.
    with on_greenlets(workers=2) as server, ExitStack() as stack:
        first, second = server.workers(2)
        eventually(lambda: server.log.count("ready in") == 2, "two workers that serve")
        client = stack.enter_context(asking(server, "/sleep?seconds=20&key=k"))
        eventually(lambda: "1 in requests" in after_signal(server), "the dump with the request")
        assert "GET /sleep?seconds=20&key=***" in server.log
        eventually(lambda: all(re.search(rf"\[{pid}\].*greenlets: ", server.log) for pid in (first, second)), "both")
        client.close()
        assert set(server.workers(2)) == {first, second}
        server.kill()


def after_signal(server):
    server.send_signal(signal.SIGURG)
    return server.log


def test_sigurg_to_a_server_without_greenlets_is_harmless():
    from harness.server import Server

    with Server("srv_shapes:app") as server:
        assert server.logged("ready in")
        server.send_signal(signal.SIGURG)
        os.kill(server.pid, signal.SIGURG)
        assert server.logged("SIGURG: ignored, since only --gevent has greenlets whose stacks can be logged")
        assert server.get("/").body == b"pong"


def test_a_dump_goes_to_the_log_when_no_file_is_given(server):
    assert server.get("/dump?to=log").status == 200
    assert server.logged("GET /dump?to=log")


def test_dumps_of_a_server_at_work_leave_it_at_work(server):
    # Fails when a dump touches greenlets in a way that their worker greenlets notice, or holds references to them.
    with ExitStack() as stack:
        clients = [stack.enter_context(asking(server, f"/wait?gate=dumps&key={n}")) for n in range(20)]
        await_waiting(server, "dumps", 20)
        for _ in range(10):
            dumped(server)
            server.send_signal(signal.SIGURG)
        open_gate(server, "dumps")
        assert {client.response().status for client in clients} == {200}
    eventually(lambda: in_requests(server) == 0, "all have ended")
