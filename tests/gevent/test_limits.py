"""`--max-greenlets` and the queue behind it; requests in flight when the server stops, reloads or replaces a worker."""

import contextlib
import json
import os
import re
import signal
from contextlib import ExitStack

import pytest
from harness.crowd import crowd
from harness.greenlets import in_requests, on_greenlets
from server.probes import asking, await_read, await_waiting, eventually, request, told

GREENLETS, QUEUE = 10, 5


def fill(server, stack, gate):
    """As many requests as may run, and as many as may wait."""
    clients = []
    for number in range(GREENLETS + QUEUE):
        clients.append(stack.enter_context(asking(server, f"/wait?gate={gate}&key={number}")))
        await_read(server)
    return clients


@pytest.fixture
def full(tmp_path):
    """A server that can take no more, its clients, the file that lets them go, and a connection without a request."""
    gate = tmp_path / "gate"
    with on_greenlets(max_greenlets=GREENLETS, max_queue=QUEUE, graceful_timeout=10) as server, ExitStack() as stack:
        idle = stack.enter_context(asking(server, "/"))
        assert idle.response().body == b"pong"
        yield server, fill(server, stack, gate), gate, idle


def test_requests_beyond_max_greenlets_wait_and_those_beyond_the_queue_are_refused(full):
    # Fails when the limit is of worker greenlets that were ever made, of connections, or none.
    server, clients, gate, _ = full
    with server.client() as extra:
        for _ in range(3):
            response = extra.ask(request("/"))
            assert (response.status, response["retry-after"], response.connection) == (503, "1", set())
        gate.touch()
        for number, client in enumerate(clients):
            assert json.loads(client.response().body) == {"opened": True, "key": str(number)}
        eventually(lambda: in_requests(server) == 0, "all have ended")
        assert extra.ask(request("/")).body == b"pong"
    assert told(server, "/process")["most_running"] == GREENLETS


def test_a_request_that_ends_lets_one_queued_request_begin(tmp_path):
    # Fails when the end of a request at the limit does not wake the hub: the queue would wait for the next arrival.
    with on_greenlets(max_greenlets=1, max_queue=100) as server, ExitStack() as stack:
        gates = [tmp_path / str(number) for number in range(6)]
        clients = [stack.enter_context(asking(server, f"/wait?gate={gate}")) for gate in gates]
        for gate, client in zip(gates, clients, strict=True):
            await_read(server)
            gate.touch()
            assert client.response().status == 200
        assert told(server, "/process")["most_running"] == 1


def test_a_request_that_waits_too_long_for_a_greenlet_is_refused(tmp_path):
    with on_greenlets(max_greenlets=1, queue_timeout=0.3) as server, ExitStack() as stack:
        stack.enter_context(asking(server, f"/wait?gate={tmp_path}/gate"))
        await_read(server)
        with asking(server, "/") as late:
            response = late.response()
        assert (response.status, response["retry-after"]) == (503, "1")
        (tmp_path / "gate").touch()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_waits_for_greenlets_and_for_what_is_queued(full, number):
    # Fails when the end asks for threads only, or when what waits in the queue is dropped.
    server, clients, gate, idle = full
    server.send_signal(number)
    idle.at_end(clean=True)
    gate.touch()
    for key, client in enumerate(clients):
        response = client.response()
        assert (response.status, json.loads(response.body)["key"]) == (200, str(key))
        assert response.connection == {"close"}
        client.at_end(clean=True)
    assert server.wait() == 0


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGINT), (signal.SIGQUIT,)], ids=["term-int", "quit"])
def test_a_second_signal_or_sigquit_ends_all_greenlets(full, numbers):
    # Fails when sleeping greenlets keep the process, or when it has to be killed by its master.
    server, clients, _, _ = full
    for number in numbers:
        server.send_signal(number)
        assert server.logged(number.name) or number == signal.SIGQUIT
    for client in clients:
        client.rest()
    server.wait()
    assert "killed" not in server.log


def key_of(client, turn):
    return f"{client}-{turn}", json.dumps({"key": f"{client}-{turn}"}).encode()


def sleeping(client, turn):
    key, body = key_of(client, turn)
    return f"/sleep?seconds=0.{(client + turn) % 3}&key={key}", body


CROWD = 400


def test_a_reload_loses_none_of_hundreds_of_greenlets():
    # Fails when the old worker cuts off who sleeps, or when a queued request is left.
    with on_greenlets(workers=2) as server:

        def reload(answered):
            if answered == CROWD // 2:
                server.send_signal(signal.SIGHUP)

        first = set(server.workers(2))
        assert crowd(server.address, CROWD, 4, sleeping, reload) == []
        eventually(lambda: not first & set(server.workers(2)), "two new workers")


def test_workers_that_are_replaced_lose_none_of_hundreds_of_greenlets():
    with on_greenlets(max_requests=300) as server:
        first = server.pid
        assert crowd(server.address, CROWD, 4, sleeping) == []
        eventually(lambda: server.pid != first, "a new worker")


def test_greenlets_are_in_the_scoreboard_of_a_worker_that_dies(tmp_path):
    # Fails when the master cannot tell what a dead worker carried.
    with on_greenlets(query_masking="none") as server, ExitStack() as stack:
        for number in range(30):
            stack.enter_context(asking(server, f"/wait?gate=dies&key=carried-{number}"))
        await_waiting(server, "dies", 30)
        os.kill(server.pid, signal.SIGKILL)
        # The request that asked for them may be there, too: its client has its answer before its greenlet is through.
        eventually(lambda: all(re.search(rf"carried-{number}\b", server.log) for number in range(30)), "all are named")
        said = "it was running 3[01] requests, of which the first 20 follow here and 1[01] in the next entries"
        assert re.search(said, server.log)
        eventually(lambda: answers(server), "a new worker")


def answers(server):
    with contextlib.suppress(Exception):
        return server.get("/").body == b"pong"
    return False


def test_threads_of_the_application_end_the_process_when_they_have_ended(tmp_path):
    # They are greenlets after the patch; fails when the end waits on the hub's own thread for them.
    (tmp_path / "lingers").touch()
    with on_greenlets("srv_processes:app", environment={"STATE": str(tmp_path)}) as server:
        assert server.get("/").status == 200
        server.send_signal(signal.SIGTERM)
        assert server.logged("waiting for threads of the application: the work")
        (tmp_path / "lingers").unlink()
        assert server.wait() == 0
        notes = (tmp_path / "notes").read_text()
        assert "work done" in notes
        assert "at the end" in notes
