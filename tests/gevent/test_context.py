"""Data that a request stores on its greenlet or in its context is gone when it ends, though greenlets run several
requests."""

import contextlib
import itertools
import json
from contextlib import ExitStack

import pytest
from harness.greenlets import on_greenlets
from harness.server import shared
from harness.wire import Broken
from server.probes import asking, await_waiting, open_gate, request

MARKS = ["gevent.local", "threading.local", "contextvar", "attribute", "thread name"]
NOTHING = dict.fromkeys(MARKS)
numbers = itertools.count()
server = shared(on_greenlets)


def asked(client, target):
    return json.loads(client.ask(request(target)).body)


@pytest.mark.parametrize("end", ["return", "raise", "nap", "gate"])
@pytest.mark.parametrize("which", [*MARKS, ",".join(MARKS)])
def test_a_request_sees_nothing_of_the_one_before(server, which, end):
    # Fails when a worker greenlet that is not as good as new takes another request.
    value = f"mine-{next(numbers)}"
    more = {"raise": "&end=raise", "nap": "&end=nap&seconds=0.001", "gate": f"&gate={value}"}.get(end, "")
    with server.client() as client:
        assert asked(client, "/marks") == [NOTHING, NOTHING]
        client.send(request(f"/marks?set={value}&which={which.replace(' ', '+')}{more}"))
        if end == "gate":
            await_waiting(server, value, 1)
            open_gate(server, value)
        response = client.response()
        if end == "raise":
            assert response.status == 500
        else:
            before, after = json.loads(response.body)
            assert before == NOTHING
            assert after == {name: value if name in which.split(",") else None for name in MARKS}
        with contextlib.ExitStack() as stack:
            if "close" in response.connection:
                client = stack.enter_context(server.client())
            for _ in range(5):
                assert asked(client, "/marks") == [NOTHING, NOTHING]


def test_two_requests_at_once_see_their_own_data(server):
    # Fails when requests share a greenlet's or a thread's state while both run.
    with ExitStack() as stack:
        clients = {
            f"mine-{number}": stack.enter_context(asking(server, f"/marks?set=mine-{number}&gate=both"))
            for number in range(50)
        }
        await_waiting(server, "both", 50)
        open_gate(server, "both")
        for value, client in clients.items():
            assert json.loads(client.response().body) == [NOTHING, dict.fromkeys(MARKS, value)]


def test_a_greenlet_that_somebody_keeps_carries_no_other_request(server):
    # Fails when references to the greenlet are not counted: code that kept it could kill the next request.
    with server.client() as client:
        asked(client, "/marks?set=kept-one&which=kept")
        for _ in range(20):
            assert asked(client, "/same_greenlet?key=kept-one") is False
            assert server.get("/same_greenlet?key=kept-one").body == b"false"


def test_a_timeout_that_a_request_left_running_raises_in_no_other_request(server):
    # Fails when a greenlet with a running gevent.Timeout is used again: within 0.3 s it would raise there.
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(5)]
        for client in clients:
            asked(client, "/marks?set=x&which=timeout")
        for client in clients:
            client.send(request("/sleep?seconds=0.5&key=k"))
        for client in clients:
            assert json.loads(client.response().body) == {"key": "k"}


def test_a_generator_keeps_its_request_apart_from_others(server):
    # Fails when the blocks of a response are made in another greenlet or context than its call.
    with ExitStack() as stack:
        streams = [stack.enter_context(asking(server, f"/marked_stream?set=mine-{n}&gate=apart")) for n in range(10)]
        answers = [stream.head() for stream in streams]
        await_waiting(server, "apart", 10)
        open_gate(server, "apart")
        for number, (stream, answer) in enumerate(zip(streams, answers, strict=True)):
            body = stream.body_of(answer).body
            assert [json.loads(line) for line in body.splitlines()] == [dict.fromkeys(MARKS, f"mine-{number}")] * 3


def test_a_broken_response_leaves_nothing_to_the_next_one(server):
    with asking(server, "/marked_stream?set=mine-broken&break=1") as client, pytest.raises(Broken):
        client.response()
    for _ in range(5):
        assert json.loads(server.get("/marks").body) == [NOTHING, NOTHING]
