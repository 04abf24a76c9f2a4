"""Libraries of applications on gevent: a database driver in C with a wait callback, and HTTP clients to the same
server."""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import ExitStack

import pytest
from harness.greenlets import on_greenlets
from harness.tools import need_module
from server.probes import asking, request

QUERIES = 30


def message(kind, content):
    return kind + struct.pack("!I", len(content) + 4) + content


READY = message(b"Z", b"I")


class Backend:
    """As much of a PostgreSQL server as libpq needs: `SELECT 'text'` answers the text once so many queries wait.

    None is answered before all are there: a client that blocks its process in one of them never sends the next.
    """

    def __init__(self, together):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.barrier = threading.Barrier(together)
        self.threads = []

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.barrier.abort()
        for thread in self.threads:
            thread.join(20)

    def _start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            client.settimeout(30)
            self._start(self._session, client)

    def _session(self, client):
        with client, client.makefile("rb") as stream:
            try:
                self._begin(client, stream)
                while kind := stream.read(1):
                    (length,) = struct.unpack("!I", stream.read(4))
                    content = stream.read(length - 4)
                    if kind == b"X":
                        return
                    if kind == b"Q":
                        self._answer(client, content.rstrip(b"\0"))
            except (OSError, threading.BrokenBarrierError):
                return

    def _begin(self, client, stream):
        while True:
            length, version = struct.unpack("!II", stream.read(8))
            stream.read(length - 8)
            if version == 196608:
                break
            # Neither TLS nor GSSAPI.
            client.sendall(b"N")
        settings = {b"server_version": b"15.0", b"client_encoding": b"UTF8", b"standard_conforming_strings": b"on"}
        said = message(b"R", struct.pack("!I", 0))
        said += b"".join(message(b"S", name + b"\0" + value + b"\0") for name, value in settings.items())
        client.sendall(said + message(b"K", struct.pack("!II", 1, 1)) + READY)

    def _answer(self, client, query):
        if not query.startswith(b"SELECT '"):
            client.sendall(message(b"C", query.split()[0] + b"\0") + READY)
            return
        value = query.split(b"'")[1]
        self.barrier.wait(30)
        row = message(b"T", struct.pack("!H", 1) + b"x\0" + struct.pack("!IHIhih", 0, 0, 25, -1, -1, 0))
        row += message(b"D", struct.pack("!HI", 1, len(value)) + value)
        client.sendall(row + message(b"C", b"SELECT 1\0") + READY)


@pytest.fixture
def hooks(tmp_path):
    """psycogreen where its documentation puts it."""
    (tmp_path / "hooks.py").write_text(
        "def post_fork(worker):\n    from psycogreen.gevent import patch_psycopg\n    patch_psycopg()\n"
    )
    return tmp_path / "hooks.py"


def test_a_database_driver_in_c_waits_on_the_hub(hooks):
    # psycopg2 waits in libpq, and only its wait callback knows gevent. Fails when a request's greenlet is not one that
    # gevent can switch (a Rust frame that must not be left, a missing hub), or when the patch comes too late.
    need_module("psycopg2")
    need_module("psycogreen.gevent")
    with Backend(QUERIES) as backend, on_greenlets("srv_database:app", hooks=hooks) as server, ExitStack() as stack:
        clients = [
            stack.enter_context(asking(server, f"/?port={backend.port}&text=answer-{number}"))
            for number in range(QUERIES)
        ]
        pongs = stack.enter_context(server.client())
        for _ in range(50):
            pongs.send(request("/pong"))
            assert pongs.response().body == b"pong"
        for number, client in enumerate(clients):
            assert client.response().body == f"answer-{number}".encode()
        assert "hub has been blocked" not in server.log


def test_the_driver_can_be_given_up_by_a_timeout(hooks):
    need_module("psycopg2")
    need_module("psycogreen.gevent")
    with Backend(2) as backend, on_greenlets("srv_database:app", hooks=hooks, request_timeout=0.5) as server:
        # One alone is never answered.
        with asking(server, f"/?port={backend.port}&text=alone") as client:
            assert client.response().status == 504
        assert server.logged("past its deadline")
        assert server.logged("gevent_wait_callback")
        assert server.get("/pong").body == b"pong"


def test_requests_inside_the_application_asks_its_own_server():
    # Fails when a request blocks the hub while it waits for another one.
    need_module("requests")
    with on_greenlets() as server, ExitStack() as stack:
        clients = [
            stack.enter_context(asking(server, f"/asks_itself?path=sleep&params=seconds%3D0.05%26key%3D{number}"))
            for number in range(40)
        ]
        for number, client in enumerate(clients):
            status, body = json.loads(client.response().body)
            assert (status, json.loads(body)) == (200, {"key": str(number)})
