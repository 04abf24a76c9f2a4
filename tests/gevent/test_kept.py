"""Objects of a request that are used after it, or elsewhere: results and errors are as with threads, and nothing
hangs."""

import itertools
import json
import re
from contextlib import ExitStack

import pytest
from harness.greenlets import in_requests, on_greenlets, record
from harness.server import Server, shared
from harness.uploads import head
from server.probes import asking, await_waiting, digest, eventually, open_gate, pattern, reading, request, taken

WHAT = ["start_response", "write", "delivery", "client_disconnected", "set_deadline", "read"]
WHEN = ["during", "after"]
numbers = itertools.count()
server = shared(on_greenlets, "srv_greenlets:app", "--stream-body")


@pytest.fixture(scope="module")
def threaded():
    """What a thread would meet: the same application, on threads."""
    with Server("srv_greenlets:app", "--stream-body") as server:
        yield server


def used(server, what, when, where):
    """What another request is answered that uses `what`, and what becomes of the one it belongs to."""
    key = f"{what}-{when}-{where}-{next(numbers)}"
    with server.client() as client, server.client() as user:
        gate = f"&gate={key}" if when == "during" else ""
        client.send(request(f"/keep?key={key}{gate}"))
        if when == "during":
            await_waiting(server, key, 1)
        else:
            assert client.response().body == b"answered."
        got = json.loads(user.ask(request(f"/use?key={key}&what={what}&where={where}")).body)
        assert got != "hangs"
        if when == "during":
            open_gate(server, key)
            response = client.response()
            assert (response.status, len(response.body)) == (200, 9)
        # Whatever happened, the connection and the server go on.
        assert client.ask(request("/")).body == b"pong"
    # Figures differ.
    return re.sub(r"[0-9.]+", "N", got)


@pytest.mark.parametrize("where", ["thread", "threadpool", "hub"])
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("what", WHAT)
def test_objects_of_a_request_used_elsewhere_behave_as_with_threads(server, threaded, what, when, where):
    # Fails when a use blocks the hub, switches to a greenlet of another thread, or waits where waiting is impossible.
    assert used(server, what, when, where) == used(threaded, what, when, "thread")


def test_a_thread_of_the_pool_writes_to_a_slow_client(server):
    # Fails when a real thread waits as a greenlet of the hub does: it would block the hub, or never return.
    size = 24 << 20
    with reading(server, f"/pooled?what=write&key=pool-writes&size={size}") as slow, server.client() as others:
        answer = slow.head()
        for _ in range(100):
            assert others.ask(request("/")).body == b"pong"
        assert record(server, "pool-writes")["made"] < 16
        assert in_requests(server) == 1
        assert taken(slow, answer) == digest(pattern(size))
    assert record(server, "pool-writes")["ended"] is None


def test_a_thread_of_the_pool_reads_a_body(server):
    # Fails when a piece that comes wakes greenlets only.
    with server.client() as client, server.client() as others:
        client.send(head(target="/pooled?what=read", length=30_000))
        for _ in range(3):
            for _ in range(30):
                assert others.ask(request("/")).body == b"pong"
            client.send(bytes(10_000))
        assert json.loads(client.response().body) == 30_000


@pytest.mark.parametrize("what", ["write", "read"])
def test_a_thread_of_the_pool_ends_with_its_client(server, what):
    key = f"pool-{what}-vanishes"
    with ExitStack() as stack:
        if what == "write":
            stack.enter_context(reading(server, f"/pooled?what=write&key={key}&size=50000000")).head()
        else:
            stack.enter_context(server.client()).send(head(target="/pooled?what=read", length=30_000))
        eventually(lambda: in_requests(server) == 1, "it waits")
    eventually(lambda: in_requests(server) == 0, "the request has ended")
    with asking(server, "/") as client:
        assert client.response().body == b"pong"
