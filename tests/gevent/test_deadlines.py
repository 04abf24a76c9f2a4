"""`--request-timeout` with greenlets: the client is sent 504 even if the hub is blocked, and only that greenlet gets
the exception."""

import json
import os
from contextlib import ExitStack

import pytest
from harness.greenlets import in_requests, on_greenlets, record
from harness.server import shared
from harness.wire import Broken
from server.probes import asking, await_waiting, eventually, open_gate, request

# Who catches the exception goes on, and meets a response that is over.
ENDED = {("refuse_to_end", "call"): None, ("refuse_to_end", "iteration"): "GeneratorExit"}
server = shared(on_greenlets, request_timeout=0.5, graceful_timeout=0.2)


def comes_back(server, key):
    """Whether the greenlet has come back, and how."""
    eventually(lambda: in_requests(server) == 1, "only the neighbour is left")
    return record(server, key)["ended"]


@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize("where", ["call", "iteration"])
@pytest.mark.parametrize("way", ["crunch", "sleep_cooperatively", "sleep_unpatched", "refuse_to_end", "open_fifo"])
def test_a_greenlet_past_its_deadline_is_ended_alone(server, tmp_path, way, where):
    # Fails when the hub must be free for the answer, when the exception reaches another greenlet or none, or when the
    # stack in the log is not the one that hangs.
    key, file = f"{way}-{where}", tmp_path / "file"
    if way == "open_fifo":
        os.mkfifo(file)
    with ExitStack() as stack:
        neighbour = stack.enter_context(asking(server, f"/wait?gate={key}&key=neighbour&deadline=none"))
        await_waiting(server, key, 1)
        target = f"/hang?key={key}&way={way}&where={where}&with={file}"
        shown = target.replace(key, "***", 1)
        client = stack.enter_context(asking(server, target))
        if where == "call":
            response = client.response()
            assert (response.status, response["connection"]) == (504, "close")
            client.at_end()
        else:
            with pytest.raises(Broken):
                client.response()
        # Only now could those end that need a file.
        assert server.logged(f"GET {shown}: past its deadline")
        if way == "open_fifo":
            os.close(os.open(file, os.O_WRONLY))
        elif way == "refuse_to_end":
            file.touch()
        assert comes_back(server, key) == ENDED.get((way, where), "RequestTimeout")
        entry = server.log.partition(f"GET {shown}: past its deadline")[2]
        assert f"in {way}\n" in entry
        open_gate(server, key)
        assert json.loads(neighbour.response().body) == {"opened": True, "key": "neighbour"}
    for _ in range(5):
        assert server.get("/").body == b"pong"


@pytest.mark.parametrize("way", ["crunch", "sleep_unpatched", "refuse_to_end", "open_fifo"])
def test_close_may_finish_after_the_deadline_and_is_named_in_the_log(server, tmp_path, way):
    # As with threads. Fails when close() is interrupted, or when a close() that hangs is not logged.
    key, file = f"{way}-close", tmp_path / "file"
    if way == "open_fifo":
        os.mkfifo(file)
    with ExitStack() as stack:
        neighbour = stack.enter_context(asking(server, f"/wait?gate={key}&key=neighbour&deadline=none"))
        await_waiting(server, key, 1)
        target = f"/hang?key={key}&way={way}&where=close&with={file}"
        shown = target.replace(key, "***", 1)
        client = stack.enter_context(asking(server, target))
        assert client.response().body == b"first"
        if way == "refuse_to_end":
            # The hub is free to say so at once.
            assert server.logged(f"GET {shown}: past its deadline")
        else:
            assert server.logged(f"by GET {shown}")
        if way == "open_fifo":
            os.close(os.open(file, os.O_WRONLY))
        else:
            file.touch()
        assert comes_back(server, key) is None
        assert record(server, key)["closed"] == 1
        open_gate(server, key)
        assert json.loads(neighbour.response().body) == {"opened": True, "key": "neighbour"}


def test_sleeping_and_computing_requests_past_their_deadline_all_end(server, tmp_path):
    # Fails when only the first overdue request is ended, or when an exception for one is raised in the running one.
    with ExitStack() as stack:
        kept = [stack.enter_context(asking(server, f"/wait?gate=many&key={n}&deadline=none")) for n in range(10)]
        await_waiting(server, "many", 10)
        hanging = []
        for number in range(20):
            way = ["sleep_cooperatively", "crunch"][number % 10 == 0]
            target = f"/hang?key=many-{number}&way={way}&with={tmp_path}/never"
            hanging.append(stack.enter_context(asking(server, target)))
        for client in hanging:
            assert client.response().status == 504
        eventually(lambda: in_requests(server) == 10, "those past their deadline have ended")
        # What waited behind the computing ones may have been answered without being called.
        ends = [record(server, f"many-{number}")["ended"] for number in range(20)]
        assert set(ends) <= {"RequestTimeout", None}
        assert ends[0] == "RequestTimeout"
        open_gate(server, "many")
        for number, client in enumerate(kept):
            assert json.loads(client.response().body)["key"] == str(number)


def test_the_next_request_of_the_greenlet_meets_no_exception(server):
    # Fails when an exception that was set late, or a second one, is raised in the next request.
    with server.client() as client:
        for turn in range(6):
            way = ["crunch", "sleep_cooperatively"][turn % 2]
            with asking(server, f"/hang?way={way}&with=/nowhere/never&deadline=0.1") as hanging:
                assert hanging.response().status == 504
            for _ in range(50):
                assert client.ask(request("/")).body == b"pong"


def test_a_deadline_that_is_kept_leaves_nothing_behind(server):
    # Fails when the timer of a request outlives it.
    before = server.log.count("past its deadline")
    with server.client() as client:
        for _ in range(100):
            assert client.ask(request("/?deadline=0.2")).body == b"pong"
        assert client.ask(request("/sleep?seconds=0.4&deadline=none&key=k")).status == 200
    assert server.log.count("past its deadline") == before
