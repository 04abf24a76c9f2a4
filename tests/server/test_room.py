"""Room for new clients: at the limit of connections the longest idle one is closed, and no request is lost."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.greenlets import GEVENT
from harness.server import APPS, Server, children
from harness.wire import Client
from server.probes import asking, eventually, request

# With so many descriptors a worker keeps so many connections.
FILES = 150
CONNECTIONS = FILES - FILES // 4
WAYS = {"threads": (), "debug": ("--debug",), "gevent": ("--gevent",), "workers": ("--workers", "2")}
LEFT_OUT = ("debug", "gevent") if GEVENT else ()


def asks(client):
    assert client.ask(request("/")).body == b"pong"


def is_open(client):
    """Whether the server has kept the connection so far."""
    client.sock.setblocking(False)
    try:
        return client.sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    finally:
        client.sock.settimeout(10)


def later():
    """Returns in another millisecond of the server's clock."""
    until = time.monotonic() + 0.005
    while time.monotonic() < until:
        pass


@pytest.fixture(params=[way for way in WAYS if way != "workers" and way not in LEFT_OUT])
def way(request):
    return WAYS[request.param]


def test_the_longest_idle_connection_makes_room(way):
    with Server("srv_deadline:app", *way, open_files=FILES) as server, ExitStack() as stack:
        # A busy server may answer the first before it has accepted the silent one, but no other.
        first, silent, *others = (stack.enter_context(server.client()) for _ in range(CONNECTIONS))
        clients = [first, *others]
        for client in clients:
            later()
            asks(client)
        later()
        asks(clients[0])
        # First the one that has never sent a byte, then those whose last request was first.
        for gone in (silent, clients[1], clients[2]):
            later()
            asks(stack.enter_context(server.client()))
            gone.at_end()
        for client in (clients[0], *clients[3:]):
            assert is_open(client)
            asks(client)


def test_connections_with_half_a_head_are_closed_after_those_without_a_byte(way):
    with Server("srv_deadline:app", *way, open_files=FILES) as server, ExitStack() as stack:
        half = stack.enter_context(server.client())
        half.send(b"GET / HTTP/1.1\r\nHo")
        # Not after a response: its client may have it a moment before the server is done with it.
        others = [stack.enter_context(server.client()) for _ in range(CONNECTIONS - 1)]
        for gone in (*others, half):
            later()
            new = stack.enter_context(server.client())
            # It stays in the middle of its head, so that it is not the next one.
            new.send(b"GET / HTTP/1.1\r\n")
            gone.at_end()


def test_a_request_in_flight_is_never_closed(way, tmp_path):
    if "--debug" in way:
        pytest.skip("one request at a time")
    gate = tmp_path / "gate"
    with Server("srv_processes:app", *way, open_files=FILES) as server, ExitStack() as stack:
        waiting = [
            stack.enter_context(asking(server, f"/wait?gate={gate}&entered={tmp_path}/entered{number}"))
            for number in range(CONNECTIONS)
        ]
        for number in range(CONNECTIONS):
            eventually((tmp_path / f"entered{number}").exists, "in flight")
        third = stack.enter_context(asking(server, f"/wait?gate={gate}&entered={tmp_path}/last"))
        assert server.logged("and none is idle: new clients wait")
        gate.touch()
        for client in waiting:
            assert client.response().body == b"waited"
        assert third.response().body == b"waited"


def test_a_flood_of_clients_is_logged_once():
    with Server("srv_deadline:app", open_files=FILES) as server, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(server.client())
        asks(stack.enter_context(server.client()))
        assert server.logged("raise the limit of open files")
    assert server.log.count("closed for new clients") == 1


def limited(soft, hard, *arguments):
    """A server with these limits of open files, once it listens; the address and the process."""
    address = free_address()
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace", "srv_deadline:app", *arguments, "--bind", address.bind],
        cwd=APPS,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
    )

    def listens():
        try:
            address.connect().close()
        except OSError:
            return False
        return True

    eventually(listens, "it listens")
    return address, process


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in LEFT_OUT])
def test_silent_clients_take_no_room_from_others_whatever_the_limit(way):
    address, process = limited(150, 200, *WAYS[way])
    with ExitStack() as stack:
        try:
            for _ in range(700):
                stack.enter_context(Client(address))
            for _ in range(5):
                asks(stack.enter_context(Client(address)))
        finally:
            process.terminate()
            said = process.communicate(timeout=40)[1]
    assert 1 <= said.count("closed for new clients") <= 2, said
    assert "none is idle" not in said


@pytest.mark.parametrize("way", WAYS)
def test_the_limit_is_raised(way):
    if way in LEFT_OUT:
        pytest.skip("is the same, or does not go with --gevent")
    _, process = limited(150, 1000, *WAYS[way])
    try:
        serving = process.pid if "--debug" in WAYS[way] else eventually(lambda: children(process.pid), "a worker")[0]
        eventually(lambda: resource.prlimit(serving, resource.RLIMIT_NOFILE)[0] > 500, "the limit is raised")
    finally:
        process.terminate()
        process.communicate(timeout=40)


@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in LEFT_OUT])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_client_becomes_a_standard_stream(way, closed):
    address = free_address()
    command = [sys.executable, "-m", "tailrace", "srv_deadline:app", *WAYS[way], "--bind", address.bind]
    process = subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", *command], cwd=APPS, stderr=subprocess.DEVNULL)
    try:

        def answers():
            try:
                client = Client(address)
            except OSError:
                return None
            asks(client)
            return client

        with eventually(answers, "it serves") as client:
            for pid in (process.pid, *children(process.pid)):
                for number in range(3):
                    assert os.readlink(f"/proc/{pid}/fd/{number}").startswith(("/dev/", "/", "pipe:"))
                    assert "socket" not in os.readlink(f"/proc/{pid}/fd/{number}")
                for each in {"<&-": [0], ">&-": [1], "2>&-": [2]}.get(closed, [0, 1, 2]):
                    assert Path(f"/proc/{pid}/fd/{each}").readlink() == Path("/dev/null")
            asks(client)
    finally:
        process.terminate()
        process.wait(40)
