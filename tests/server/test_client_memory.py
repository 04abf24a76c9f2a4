"""`--client-memory`: the memory that clients can make a server hold is limited and is freed again; others are
served."""

import contextlib

import pytest
from harness.greenlets import GEVENT
from harness.server import Server
from harness.wire import Broken
from server.probes import await_waiting, eventually, open_gate, receive_queues, request, resident

MEGABYTES = 1_000_000
HEAD = b"GET / HTTP/1.1\r\nHost: t\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 1000) for n in range(58))
BODY = b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: 16000\r\n\r\n" + b"x" * 15_000


def crowd_of(server, stack, clients, wanted):
    """So many clients that have sent this and wait."""
    crowd = []
    for _ in range(clients):
        client = stack.enter_context(server.client(30))
        client.send(wanted)
        crowd.append(client)
    eventually(lambda: not any(receive_queues(server)), "all is taken in")
    return crowd


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize(
    "arguments",
    [(), pytest.param(("--debug",), marks=pytest.mark.skipif(GEVENT, reason="--debug has no greenlets"))],
    ids=["threads", "debug"],
)
@pytest.mark.parametrize(("wanted", "rest"), [(HEAD, b"\r\n"), (BODY, b"x" * 1000)], ids=["heads", "bodies"])
def test_a_crowd_that_finishes_nothing_loses_its_own_requests(arguments, wanted, rest):
    clients = 24 * MEGABYTES // len(wanted)
    with (
        Server("srv_crowd:app", *arguments, client_memory="4MiB") as server,
        contextlib.ExitStack() as stack,
    ):
        assert server.get("/").body == b"pong"
        before = resident(server)
        crowd = crowd_of(server, stack, clients, wanted)
        assert resident(server) - before < 14 * MEGABYTES
        for _ in range(50):
            assert server.get("/").body == b"pong"
        first = crowd[0].response()
        assert (first.status, first["retry-after"], first.connection) == (503, "1", {"close"})
        crowd[-1].send(rest)
        assert crowd[-1].response().status == 200


def test_what_a_crowd_of_unfinished_requests_held_goes_back():
    with Server("srv_crowd:app") as server:
        assert server.get("/").body == b"pong"
        before = resident(server)
        with contextlib.ExitStack() as stack:
            crowd_of(server, stack, 800, HEAD)
            assert resident(server) - before > 40 * MEGABYTES
        # Nobody asks anything any more.
        eventually(lambda: resident(server) - before < 10 * MEGABYTES, "memory given back")


def test_pipelined_bytes_are_kept_as_long_as_there_is_memory():
    behind = request("/pong") + request("/", "X-Room: " + "x" * 50_000)
    with Server("srv_crowd:app", threads=40, client_memory="1MiB") as server, contextlib.ExitStack() as stack:
        crowd = crowd_of(server, stack, 30, request("/wait?gate=g") + behind)
        await_waiting(server, "g", 30)
        open_gate(server, "g")
        kept = 0
        for client in crowd:
            first = client.response()
            assert first.status == 200
            if first.connection == {"close"}:
                with contextlib.suppress(Broken):
                    client.at_end()
            else:
                assert [client.response().status for _ in range(2)] == [200, 200]
                kept += 1
        # Within three quarters of it.
        assert 5 <= kept <= 1.05 * 0.75 * MEGABYTES / 50_000
