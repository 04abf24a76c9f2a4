"""Many connections, random bytes and aborted requests: afterwards the server serves, and holds nothing of them."""

import contextlib
import random
import resource
from contextlib import ExitStack

import pytest
from harness.server import Server, shared
from harness.wire import Client
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from server.probes import deleted_files, descriptors, digest, eventually, pattern, request, told

IDLE = 2_000
UPLOAD = b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n"
server = shared(Server, "srv_shapes:app", threads=4, client_memory="4MiB")


def is_healthy(server):
    with server.client() as client:
        client.send(request("/list?size=70000") + request("/generator?size=70000&block=100"))
        assert digest(client.response().body) == digest(pattern(70_000))
        assert digest(client.response().body) == digest(pattern(70_000))


@contextlib.contextmanager
def many_descriptors(needed):
    """Lets this process, and the servers that it starts, open so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"no more than {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_idle_connections_while_requests_go_on():
    with many_descriptors(IDLE + 500), Server("srv_shapes:app", threads=4) as server, ExitStack() as stack:
        is_healthy(server)
        before = descriptors(server)
        clients = []
        for number in range(IDLE):
            client = stack.enter_context(server.client())
            assert client.ask(request("/")).body == b"pong"
            clients.append(client)
            if number % 100 == 0:
                is_healthy(server)
        assert descriptors(server) > IDLE
        # None was dropped, each is answered again, in any order.
        random.Random(1).shuffle(clients)
        for client in clients:
            client.send(request("/"))
        for client in clients:
            assert client.response().body == b"pong"
        stack.close()
        eventually(lambda: descriptors(server) <= before, "all connections closed")
        is_healthy(server)


LINES = [
    *(b"GET / HTTP/1.1\r\n", b"POST /body HTTP/1.1\r\n", b"Host: t\r\n", b"Connection: close\r\n"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n", b"0\r\n"),
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b":"),
]
NEAR_HTTP = st.lists(
    st.sampled_from(LINES),
    max_size=12,
).map(b"".join)


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(garbage=st.one_of(st.binary(max_size=300), NEAR_HTTP), more=st.binary(max_size=50))
@example(garbage=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", more=bytes(200))
def test_random_bytes_are_answered_with_http_or_an_end(server, garbage, more):
    with server.client() as client:
        client.send(garbage)
        client.send(more)
        client.finish_sending()
        rest = client.rest()
        assert rest == b"" or rest.startswith(b"HTTP/1.1 ")
    assert server.process.poll() is None


def test_after_the_garbage_the_server_is_healthy(server):
    for number in range(300):
        with server.client() as client:
            client.send(random.Random(number).randbytes(3000))
    is_healthy(server)


def bad_connection(server, kind, numbers):
    """A connection of one kind; most of them end badly."""
    client = server.client(20)
    with client:
        if kind == "good":
            assert client.ask(request("/generator?size=3000&block=50")).body == pattern(3000)
        elif kind == "refused":
            assert client.ask(b"GET / HTTP/1.1\r\nHost : t\r\n\r\n").status == 400
        elif kind == "nothing":
            pass
        elif kind == "half a head":
            client.send(b"GET / HTTP/1.1\r\nHo")
        elif kind == "half a body":
            client.send(UPLOAD + bytes(numbers.choice([1, 9_000, 300_000])))
        elif kind == "body without a reader":
            client.send(UPLOAD + bytes(1_000_000))
        elif kind == "response not read":
            client.send(request(f"/{numbers.choice(['list', 'generator', 'file', 'bytes'])}?size=2000000"))
            client.read(1)
        elif kind == "reset":
            client.send(request("/generator?size=2000000&block=10000"))
            client.read(1000)
            client.abort()
        elif kind == "half close":
            client.send(request("/"))
            client.finish_sending()
            assert client.response().body == b"pong"
            client.at_end()


KINDS = [
    *("good", "refused", "nothing", "half a head", "half a body"),
    *("body without a reader", "response not read", "reset", "half close", "good"),
]


def test_a_thousand_good_bad_and_broken_connections_leave_no_descriptor(server):
    is_healthy(server)
    before = descriptors(server)
    numbers = random.Random(7)
    for number in range(1_000):
        bad_connection(server, KINDS[number % len(KINDS)], numbers)
    eventually(lambda: descriptors(server) <= before, "descriptors closed")
    is_healthy(server)


def test_an_aborted_upload_leaves_no_temporary_file(server):
    with ExitStack() as stack:
        for number in range(1, 51):
            stack.enter_context(server.client()).send(UPLOAD + bytes(600_000))
            # Past an eighth of --client-memory each is a file without a name. Together, those that are not yet would
            # exceed it, and some would get 503.
            eventually(lambda number=number: deleted_files(server) == number, "the upload in a file")
        is_healthy(server)
    eventually(lambda: deleted_files(server) == 0, "files emptied")


def test_without_descriptors_left_the_server_waits_and_then_serves_again():
    with Server("srv_shapes:app", threads=2) as server:
        told(server, "/process")
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (64, 64))
        with ExitStack() as stack:
            flood = []
            for number in range(200):
                client = stack.enter_context(Client(server.address, 30))
                client.send(request(f"/?{number}"))
                flood.append(client)
            # Those that were accepted are answered although there is no descriptor for more.
            assert flood[0].response().body == b"pong"
            eventually(lambda: "no more connections can be opened" in server.log, "a line that says so")
            assert server.process.poll() is None
            # As connections go, those that waited are taken in.
            for client in flood[:100]:
                client.close()
            for client in flood[100:]:
                assert client.response().body == b"pong"
                client.close()
        is_healthy(server)
        lines = server.log.count("no more connections can be opened")
        assert lines < 1_000
