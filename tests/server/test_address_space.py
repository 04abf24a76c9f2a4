"""A worker with limited memory (`ulimit -v`) rejects requests that do not fit. If it cannot continue without memory,
it aborts immediately and is replaced."""

import contextlib
import functools
import re
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.encrypted import authority_in
from harness.greenlets import GEVENT
from harness.operated import operating
from harness.server import Server
from harness.wire import Broken, NotHttp
from server.probes import at_once, eventually, request

MIB = 1 << 20
# So that nothing but the system says no.
WITHOUT_LIMITS = {"client_memory": "1024GiB", "max_body": "1GiB"}


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
    """The process has not been replaced."""
    assert server.get("/").body == b"pong"
    assert server.pid == pid
    assert "memory allocation" not in server.log


@pytest.mark.nightly(gate=4)
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


@pytest.mark.nightly(gate=4)
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


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize(
    ("arguments", "options"),
    [((), {}), ((), {"client_memory": "64MiB"}), (("--gevent",), {})],
    ids=["default", "client-memory", "gevent"],
)
@pytest.mark.parametrize("room", [300, 500])
def test_a_crowd_that_uses_up_the_memory_is_served_afterwards(room, arguments, options):
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
        calls = [request("/sleep?size=5")] * 120 + [upload + bytes(size)] * 30
        at_once(*(functools.partial(ask, server, data, statuses) for data in calls))
        assert len(statuses) == 150
        assert 200 in statuses
        server.may_panic = True
        eventually(lambda: server.get("/").body == b"pong", "an answer")
        assert server.pid == pid or "was killed by SIGABRT; replacing it" in server.log


def test_a_worker_that_cannot_allocate_ends_at_once_and_is_replaced(tmp_path):
    """Incomplete handshakes use up the memory: what rustls needs for them has no other size than its own."""
    (tmp_path / "app.py").write_text(
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Length', '4')])\n"
        "    return [b'pong']\n"
    )
    (tmp_path / "tls").mkdir()
    authority, address = authority_in(tmp_path / "tls"), free_address()
    arguments = ["--bind", f"https://{address.place}", "--client-memory", "1024GiB"]
    arguments += ["--certfile", str(authority.chain), "--keyfile", str(authority.key)]
    hello = b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb" + bytes(16_000)
    with operating(tmp_path, "app:app", *arguments, address=address, binds=False) as server, ExitStack() as stack:
        (pid,) = map(int, re.findall(r"\(pid (\d+)\) ready", server.log))
        status = Path(f"/proc/{pid}/status").read_text()
        for limit, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
            used = int(status.split(f"{name}:")[1].split()[0]) * 1024
            resource.prlimit(pid, limit, (used, used))
        for _ in range(20_000):
            if "replacing it" in server.log:
                break
            client = stack.enter_context(socket.create_connection((address.host, address.port)))
            with contextlib.suppress(OSError):
                client.sendall(hello)
        server.logged(f"worker 1 (pid {pid}) was killed by SIGABRT; replacing it; it was running 0 requests")
        server.logged("ready in", 2)
        stack.close()
        with socket.create_connection((address.host, address.port)) as plain:
            with authority.client().wrap_socket(plain, server_hostname="localhost") as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert client.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
