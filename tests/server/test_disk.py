"""Temporary files on a disk that is full or does not respond: only the requests that need it are affected."""

import hashlib
import json
from contextlib import ExitStack

import pytest
from harness.server import Server
from server.probes import deleted_files, descriptors, eventually, fill, pattern, receive_queues, request, told

SIZE = 3_000_000
KIND = [pytest.param([], id="threads"), pytest.param(["--threads", "1"], id="one-thread")]
MODES = [*KIND, pytest.param(["--gevent"], id="gevent"), pytest.param(["--debug"], id="debug")]


def serving(disk, *arguments, **options):
    return Server("srv_shapes:app", *arguments, environment=disk.environment, client_memory="4MiB", **options)


def uploading(server, size=SIZE, target="/body"):
    client = server.client(30)
    client.send(b"POST %s HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % (target.encode(), size))
    return client


def send(server, client, data):
    """Sends what the server may not read for now."""
    client.sock.settimeout(30)
    client.send(data)


def of_body(size=SIZE):
    return {"length": size, "hash": hashlib.sha256(pattern(size)).hexdigest()}


def at_rest(server):
    """Its temporary files and descriptors, once it serves and nobody asks."""
    assert server.get("/").body == b"pong"
    return deleted_files(server), descriptors(server)


def workers_on_disk(server):
    return sum(name == "tailrace-disk" for name in server.threads())


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("arguments", MODES)
def test_a_disk_that_stands_still_holds_only_the_uploads_that_need_it(disk, arguments):
    with serving(disk, *arguments) as server:
        files, before = at_rest(server)
        assert workers_on_disk(server) == 0
        with uploading(server) as first, uploading(server) as second:
            disk.set("hold", True)
            for client in (first, second):
                send(server, client, pattern(600_000))
            eventually(lambda: disk.waiting() == 2, "two operations that wait")
            for _ in range(20):
                assert server.get("/").body == b"pong"
            small = b"POST /body HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n"
            with server.client() as client:
                assert json.loads(client.ask(small + pattern(1000)).body) == of_body(1000)
            disk.set("hold", False)
            for client in (first, second):
                send(server, client, pattern(SIZE - 600_000, 600_000))
                assert json.loads(client.response().body) == of_body()
                assert client.ask(request("/")).body == b"pong", "the connection is kept"
        eventually(lambda: deleted_files(server) == files, "no temporary file")
        eventually(lambda: descriptors(server) <= before, "no descriptor")
        eventually(lambda: workers_on_disk(server) == 0, "no thread that has nothing to do")


def test_an_upload_whose_disk_stands_still_is_not_read_on(disk):
    with serving(disk) as server, uploading(server, 100_000_000) as client:
        disk.set("hold", True)
        send(server, client, pattern(600_000))
        eventually(lambda: disk.waiting() == 1, "a write that waits")
        # Between the two kernels, and one part in the server.
        fill(server, client, lambda sent: pattern(65_536, 600_000 + sent), 30_000_000)
        assert sum(receive_queues(server)) > 0, "the kernel holds what the server does not read"
        assert disk.waiting() == 1
        disk.set("hold", False)


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("arguments", MODES)
def test_a_request_that_comes_while_the_one_before_is_written_is_read(disk, arguments):
    size = 529_000
    head = b"POST /body HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size
    with serving(disk, *arguments, body_timeout=15) as server, server.client(30) as client:
        disk.set("hold", True)
        # So much is in memory; the end of the body comes with the next request's beginning, and is written.
        client.send(head + pattern(524_000))
        eventually(lambda: not any(receive_queues(server)), "most of the first body")
        client.send(pattern(size - 524_000, 524_000) + head + pattern(100))
        eventually(lambda: disk.waiting() == 1 and not any(receive_queues(server)), "a write that waits")
        client.send(pattern(size - 100, 100))
        eventually(lambda: any(receive_queues(server)), "the rest is there")
        disk.set("hold", False)
        for _ in range(2):
            assert json.loads(client.response().body) == of_body(size)


def test_time_that_the_disk_takes_is_not_the_clients(disk):
    # Enough for the client, if the machine is busy, between its parts.
    with serving(disk, body_timeout=5) as server, uploading(server) as client:
        send(server, client, pattern(600_000))
        eventually(lambda: deleted_files(server) >= 1 and not any(receive_queues(server)), "a first write")
        disk.set("hold", True)
        send(server, client, pattern(SIZE - 600_000, 600_000))
        eventually(lambda: disk.waiting() == 1, "a write that waits")
        # Another client's time runs, and is over after as long as this one's would be.
        with uploading(server) as late:
            assert late.response().status == 408
        disk.set("hold", False)
        assert json.loads(client.response().body) == of_body()


@pytest.mark.parametrize("arguments", MODES)
def test_a_full_disk_refuses_the_request_that_needs_it_and_no_other(disk, arguments):
    with serving(disk, *arguments) as server:
        files, _ = at_rest(server)
        disk.set("full", True)
        with uploading(server) as client:
            send(server, client, pattern(600_000))
            assert client.response().status == 507
        assert server.logged("cannot store a request body in")
        assert server.get("/").body == b"pong"
        disk.set("full", False)
        with uploading(server) as client:
            send(server, client, pattern(600_000))
            # There is a file by then.
            eventually(lambda: deleted_files(server) > files, "a file")
            disk.set("full", True)
            send(server, client, pattern(SIZE - 600_000, 600_000))
            assert client.response().status == 507
        disk.set("full", False)
        with uploading(server) as client:
            send(server, client, pattern(SIZE))
            assert json.loads(client.response().body) == of_body()
        eventually(lambda: deleted_files(server) == files, "no temporary file")


def test_clients_that_leave_while_the_disk_stands_still_leave_nothing_behind(disk):
    with serving(disk) as server:
        files, before = at_rest(server)
        clients = [uploading(server) for _ in range(20)]
        disk.set("hold", True)
        for client in clients:
            send(server, client, pattern(600_000))
        eventually(lambda: disk.waiting() == 8, "as many threads as there may be")
        assert workers_on_disk(server) == 8
        for client in clients:
            client.close()
        assert server.get("/").body == b"pong"
        disk.set("hold", False)
        eventually(lambda: descriptors(server) <= before, "no descriptor")
        eventually(lambda: deleted_files(server) == files, "no temporary file")
        assert told(server, "/process")["active"] > 0


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("arguments", MODES)
def test_a_server_stops_while_the_disk_stands_still(disk, arguments):
    with serving(disk, *arguments, graceful_timeout=0.2) as server, ExitStack() as stack:
        clients = [stack.enter_context(uploading(server)) for _ in range(12)]
        disk.set("hold", True)
        for client in clients:
            send(server, client, pattern(600_000))
        eventually(lambda: disk.waiting() == 8, "as many threads as there may be")
        assert server.stop() == 0
