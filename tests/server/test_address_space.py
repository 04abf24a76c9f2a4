"""A process with limited memory (`ulimit -v`) refuses requests that do not fit, and does not die."""

import contextlib
import resource
import threading
from pathlib import Path

import pytest
from harness.greenlets import GEVENT
from harness.server import Server
from harness.wire import Broken, NotHttp
from server.probes import request

MIB = 1 << 20
# So that nothing but the system says no.
WITHOUT_LIMITS = {"client_memory": "1024GiB", "body_memory": "1GiB", "max_body": "1GiB"}


def bounded(server, room):
    """From now on the server's process may have so much more address space."""
    has_what_it_needs = [server.get("/").body for _ in range(3)]
    assert has_what_it_needs == [b"pong"] * 3
    status = Path(f"/proc/{server.pid}/status").read_text()
    size = int(status.split("VmSize:")[1].split()[0]) * 1024 + room
    resource.prlimit(server.pid, resource.RLIMIT_AS, (size, size))
    return server.pid


def outcome(client):
    """The status of the response, or how there was none."""
    try:
        return client.response().status
    except (Broken, NotHttp, OSError) as error:
        return repr(error)


def serves(server, pid):
    """The same process goes on."""
    assert server.get("/").body == b"pong"
    assert server.pid == pid
    assert "memory allocation" not in server.log


@pytest.mark.parametrize("arguments", [(), ("--stream-body",)], ids=["whole", "streamed"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("read", ["read", "read_into", "read_line", "read_lines"])
def test_a_body_that_does_not_fit_is_refused(arguments, chunked, read):
    size = 200 * MIB
    piece = b"x" * MIB
    with Server("srv_memory:app", *arguments, threads=4, **WITHOUT_LIMITS) as server:
        pid = bounded(server, 150 * MIB)
        with server.client(30) as client:
            framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
            client.send(f"POST /{read}?size={size} HTTP/1.1\r\nHost: t\r\n{framing}\r\n\r\n".encode())
            # It may answer before it has all.
            with contextlib.suppress(OSError):
                for _ in range(size // MIB):
                    client.send(b"%x\r\n%s\r\n" % (MIB, piece) if chunked else piece)
                client.send(b"0\r\n\r\n" if chunked else b"")
            assert outcome(client) in (500, 503, 507)
        serves(server, pid)


# Enough for all that a body may have in memory, and not.
@pytest.mark.parametrize("room", [180, 40])
def test_bodies_that_do_not_fit_in_memory_are_in_files_and_an_error_of_the_application_that_reads_them_whole(room):
    size = 200 * MIB
    with Server("srv_memory:app", threads=4) as server:
        pid = bounded(server, room * MIB)
        for read in ("read", "read_line", "read_lines"):
            with server.client(30) as client:
                client.send(f"POST /{read}?size=1 HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n".encode())
                for _ in range(size // MIB):
                    client.send(b"x" * MIB)
                assert outcome(client) == 500
            serves(server, pid)


def test_a_head_that_does_not_fit_is_refused():
    limits = {"header_bytes_limit": "1GiB", "max_queue": 10}
    with Server("srv_memory:app", threads=4, **limits, **WITHOUT_LIMITS) as server:
        pid = bounded(server, 100 * MIB)
        with server.client(30) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: t\r\nX-Large: ")
            with contextlib.suppress(OSError):
                for _ in range(200):
                    client.send(b"x" * MIB)
            assert outcome(client) == 503
        serves(server, pid)


SHAPES = ["many", "many_large", "many_other", "empty", "other", "header", "failed"]


@pytest.mark.parametrize(
    "arguments",
    [(), pytest.param(("--debug",), marks=pytest.mark.skipif(GEVENT, reason="--debug has no greenlets"))],
    ids=["threads", "debug"],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_response_that_does_not_fit_is_an_error_of_the_application(shape, arguments):
    with Server("srv_memory:app", *arguments, **WITHOUT_LIMITS) as server:
        pid = bounded(server, 40 * MIB)
        # Of one that fits, what the client does not take at once may not: then the connection breaks.
        for size in (MIB // 8, 8 * MIB, 24 * MIB):
            with server.client(30) as client:
                client.send(request(f"/{shape}?size={size}"))
                assert size > MIB or outcome(client) == (500 if shape == "failed" else 200)
        with server.client(30) as client:
            client.send(request(f"/{shape}?size={4096 * MIB}"))
            assert outcome(client) == 500
        serves(server, pid)


@pytest.mark.parametrize("count", [1, 100])
def test_an_allocation_of_cpython_that_fails_costs_a_response_at_most(count):
    pytest.importorskip("_testcapi")
    with Server("srv_memory:app", threads=2) as server:
        # pyo3 panics where CPython gives it no object.
        server.may_panic = True
        pid = bounded(server, 1024 * MIB)
        outcomes = set()
        for number in range(300):
            for target in (f"/fail?size={number}", "/"):
                with server.client() as client:
                    client.send(f"GET {target} HTTP/1.1\r\nHost: {count}\r\n\r\n".encode())
                    outcomes.add(outcome(client))
            # With each request fewer failing ones are left.
            for _ in range(count):
                with server.client() as client:
                    client.send(request("/"))
                    if outcome(client) == 200:
                        break
        assert {200, 500} <= outcomes
        serves(server, pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "options"),
    [((), {}), ((), {"client_memory": "64MiB"}), (("--gevent",), {})],
    ids=["default", "client-memory", "gevent"],
)
@pytest.mark.parametrize("room", [300, 500])
def test_a_crowd_that_uses_up_the_memory_ends_no_worker(room, arguments, options):
    """Threads use up the address space, and then small blocks are missing as well."""
    if arguments:
        pytest.importorskip("gevent")
    size = 20 * MIB
    upload = f"POST /read_parts?size=1 HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n".encode()

    def ask(server, data, statuses):
        with server.client(60) as client:
            with contextlib.suppress(OSError):
                client.send(data)
            statuses.append(outcome(client))

    with Server("srv_memory:app", *arguments, **options) as server:
        pid = bounded(server, room * MIB)
        statuses = []
        sleeping = [threading.Thread(target=ask, args=(server, request("/sleep?size=5"), statuses)) for _ in range(120)]
        uploading = [threading.Thread(target=ask, args=(server, upload + bytes(size), statuses)) for _ in range(30)]
        for thread in sleeping + uploading:
            thread.start()
        for thread in sleeping + uploading:
            thread.join()
        assert len(statuses) == 150
        assert 200 in statuses
        serves(server, pid)
