"""`--max-requests-per-client` and `--max-connections-per-client`: who is limited, by which count, and who is not."""

import contextlib
import http.client
import os
import signal
import socket

import pytest
from frameworks.process import nginx
from harness.addresses import Address, free_address
from harness.server import GEVENT, Server, children
from harness.status import document
from harness.wire import Client
from server.probes import eventually, request

ONE, OTHER = "127.0.0.21", "127.0.0.22"
NGINX = """
server {
    listen %(listen)s;
    location / {
        proxy_set_header X-Forwarded-For $http_x_test_client;
        proxy_set_header Connection "";
        proxy_http_version 1.1;
        proxy_pass http://%(server)s;
    }
}
"""
# Nothing comes back within a test.
# A client on this machine is no proxy.
DIRECT = {"trusted_proxies": "none"}
RATE = {"max_requests_per_client": "5/h"}


class Asking:
    """A connection from an address of this machine."""

    def __init__(self, address, source=ONE):
        self.connection = http.client.HTTPConnection(address.host, address.port, timeout=30, source_address=(source, 0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def get(self, target="/bytes/10", method="GET", body=None, **fields):
        self.connection.request(method, target, body, {name.replace("_", "-"): value for name, value in fields.items()})
        answer = self.connection.getresponse()
        return answer, answer.read()

    def status(self, *arguments, **fields):
        return self.get(*arguments, **fields)[0].status


def statuses(address, source, count, **fields):
    """Those of so many requests, each on a connection of its own."""
    found = []
    for _ in range(count):
        with Asking(address, source) as client:
            found.append(client.status(**fields))
    return found


def counter(status, name):
    return document(status)["totals"][name]


def kill_workers(server, count):
    """Kills so many workers, which all serve, and returns when others do."""
    before = server.log.count("ready in")
    for pid in children(server.process.pid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: server.log.count("ready in") == before + count, "new workers")


def all_ready(server, count):
    eventually(lambda: server.log.count("ready in") == count, "all workers")


def test_a_client_gets_429_beyond_its_rate_and_others_do_not(tmp_path):
    status, log = free_address(), tmp_path / "log"
    more = {"access_log": log, "access_log_format": "{status}", **DIRECT, **RATE}
    with Server("fw_delivery:app", status=status, **more) as server:
        with Asking(server.address) as client:
            assert [client.status() for _ in range(5)] == [200] * 5
            answer, body = client.get()
            assert (answer.status, b"too many requests" in body) == (429, True)
            # A token comes back every 720 s.
            assert 600 < int(answer.headers["Retry-After"]) <= 720
            # The connection lives on, and so it does after a body and after HEAD.
            assert client.status(method="POST", body=b"x" * 100_000) == 429
            answer, body = client.get(method="HEAD")
            assert (answer.status, body, int(answer.headers["Content-Length"]) > 0) == (429, b"", True)
        assert statuses(server.address, OTHER, 5) == [200] * 5
        assert statuses(server.address, ONE, 1) == [429]
        eventually(lambda: counter(status, "limited_requests") == 4, "the count of all four")
        assert counter(status, "requests") == 10
    assert log.read_text().split().count("429") == 4


def test_all_workers_have_one_count_which_survives_them():
    with Server("fw_delivery:app", "--workers", "3", max_requests_per_client="30/h", **DIRECT) as server:
        all_ready(server, 3)
        assert statuses(server.address, ONE, 20) == [200] * 20
        kill_workers(server, 3)
        assert sorted(statuses(server.address, ONE, 20)) == [200] * 10 + [429] * 10
        server.send_signal(signal.SIGHUP)
        eventually(lambda: "reload complete" in server.log, "the reload")
        assert statuses(server.address, ONE, 2) == [429, 429]


@pytest.mark.parametrize("trusted", [True, False])
def test_behind_a_trusted_proxy_its_clients_are_counted_and_not_the_proxy(trusted):
    listen = free_address()
    options = {"trusted_proxies": "127.0.0.1" if trusted else "none"}
    with Server("fw_delivery:app", **RATE, **options) as server:
        with nginx(listen, NGINX % {"listen": listen.bind, "server": server.address.bind}):
            for client in ("192.0.2.1", "192.0.2.2", "2001:db8:1:2::1"):
                found = statuses(listen, ONE, 6, X_Test_Client=client)
                assert found == ([200] * 5 + [429] if trusted or client == "192.0.2.1" else [429] * 6)
            # Of the same /64, and of another.
            assert statuses(listen, ONE, 1, X_Test_Client="2001:db8:1:2:ffff::") == [429]
            assert statuses(listen, ONE, 1, X_Test_Client="2001:db8:1:3::") == [200 if trusted else 429]
        # Its own requests, such as checks, are not counted.
        assert set(statuses(server.address, "127.0.0.1", 10)) == ({200} if trusted else {429})


def test_static_files_count_and_unix_sockets_do_not(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    path, address = f"{tmp_path}/s", free_address()
    arguments = ("--bind", address.bind, "--bind", f"unix:{path}", "--static", f"/files={tmp_path}")
    with Server("fw_delivery:app", *arguments, address=address, **DIRECT, **RATE) as server:
        with Asking(address) as client:
            assert [client.status("/files/a.txt") for _ in range(6)] == [200] * 5 + [429]
        for _ in range(8):
            with Client(Address(path=path)) as client:
                assert client.ask(request("/bytes/10")).status == 200
        assert "Traceback" not in server.log


def test_connections_beyond_the_limit_get_429_and_leave_room_when_they_end():
    status = free_address()
    with Server("fw_delivery:app", "--workers", "2", status=status, max_connections_per_client=4, **DIRECT) as server:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Asking(server.address)) for _ in range(4)]
            assert [client.status() for client in clients] == [200] * 4
            with contextlib.closing(
                socket.create_connection((server.address.host, server.address.port), 30, (ONE, 0))
            ) as fifth:
                answer = http.client.HTTPResponse(fifth)
                answer.begin()
                assert (answer.status, answer.read()) == (429, b"This client has too many connections open.")
                assert (answer.headers["Retry-After"], answer.headers["Connection"]) == ("1", "close")
            # The others live on, and other clients are served.
            assert [client.status() for client in clients] == [200] * 4
            assert statuses(server.address, OTHER, 6) == [200] * 6
            eventually(lambda: counter(status, "limited_connections") == 1, "the count")
            clients[0].connection.close()
            eventually(lambda: statuses(server.address, ONE, 1) == [200], "room for another one")
        said = "client 127.0.0.21 has 4 connections already"
        eventually(lambda: said in server.log, "the line of the log")
        # Each worker logs it once.
        assert server.log.count(said) <= 2


def test_connections_of_a_worker_that_was_killed_are_forgotten():
    with Server("fw_delivery:app", "--workers", "2", max_connections_per_client=3, **DIRECT) as server:
        all_ready(server, 2)
        for _ in range(3):
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(Asking(server.address)) for _ in range(3)]
                assert [client.status() for client in clients] == [200] * 3
                kill_workers(server, 2)


@pytest.mark.parametrize("limited", [True, False])
def test_a_proxy_header_names_the_client_whose_connections_count(limited):
    address = free_address()
    options = {"max_connections_per_client": 2} if limited else {}
    arguments = ("--bind", f"{address.bind}?proxy=v1", "--trusted-proxies", "127.0.0.1")
    with Server("fw_delivery:app", *arguments, address=address, **options) as server, contextlib.ExitStack() as stack:

        def is_served(source):
            client = stack.enter_context(server.client(30))
            client.send(f"PROXY TCP4 {source} 127.0.0.1 4711 80\r\n".encode() + request("/bytes/10"))
            return not client.has_ended() and client.response().status == 200

        assert [is_served("192.0.2.1") for _ in range(3)] == [True, True, not limited]
        assert is_served("192.0.2.2")
        said = "client 192.0.2.1 has 2 connections already"
        if limited:
            assert server.logged(said)
        else:
            assert said not in server.log


@pytest.mark.skipif(GEVENT, reason="the mode is its own")
@pytest.mark.parametrize("mode", ["--debug", "--gevent"])
def test_the_limits_are_those_of_every_mode(mode):
    with Server("fw_delivery:app", mode, max_connections_per_client=2, **DIRECT, **RATE) as server:
        with Asking(server.address) as one, Asking(server.address) as two:
            assert [one.status(), two.status()] == [200, 200]
            with Asking(server.address) as three:
                with contextlib.suppress(ConnectionResetError, http.client.RemoteDisconnected):
                    assert three.status() == 429
            assert [one.status() for _ in range(4)] == [200] * 3 + [429]
