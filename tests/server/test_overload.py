"""`--max-queue`, `--queue-timeout`: requests beyond them are refused, and others are not
affected."""

import contextlib
import select

from harness.server import Server
from server.probes import asking, await_read, eventually, request

# A request that hangs at the gate must not make the end of a test wait.
OPTIONS = {"graceful_timeout": 0.2}


def hang(server, stack):
    """Keeps the only thread busy for the rest of the test."""
    stack.enter_context(asking(server, "/gate"))
    assert server.logged("at the gate")


def has_response(client):
    """Whether anything has come from the server."""
    return bool(select.select([client.sock], [], [], 0)[0])


def test_requests_beyond_the_queue_are_refused_and_the_connection_lives():
    with Server("srv_deadline:app", threads=1, max_queue=3, **OPTIONS) as server, contextlib.ExitStack() as stack:
        hang(server, stack)
        # One runs, three wait; the next one is refused.
        queued = []
        for _ in range(3):
            queued.append(stack.enter_context(asking(server, "/")))
            await_read(server)
        client = stack.enter_context(asking(server, "/"))
        refused = client.response()
        assert (refused.status, refused["retry-after"]) == (503, "1")
        assert refused.connection == set()
        assert client.ask(request("/")).status == 503
        assert not any(map(has_response, queued))


def test_a_request_that_waits_too_long_for_a_thread_is_refused():
    with Server("srv_deadline:app", threads=1, queue_timeout=0.3, **OPTIONS) as server, contextlib.ExitStack() as stack:
        hang(server, stack)
        late = stack.enter_context(asking(server, "/"))
        response = late.response()
        assert (response.status, response["retry-after"]) == (503, "1")


def test_pipelined_requests_beyond_the_queue_are_each_answered():
    with Server("srv_deadline:app", threads=1, max_queue=1, **OPTIONS) as server, contextlib.ExitStack() as stack:
        hang(server, stack)
        stack.enter_context(asking(server, "/"))
        eventually(lambda: server.get("/").status == 503, "a full queue")
        many = stack.enter_context(server.client(30))
        many.send(request("/") * 5000)
        assert {many.response().status for _ in range(5000)} == {503}
