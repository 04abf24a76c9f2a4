"""The application takes over the connection of a request for a WebSocket."""

import contextlib
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from harness.addresses import free_address
from harness.server import Server
from harness.status import metrics
from harness.wire import Broken
from server.probes import eventually

ASKS = b"Host: shop.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
PLACES = [(), ("--gevent",), ("--debug",), ("--preload",), ("https",)]


def serving(*arguments, **options):
    """A server. "https" among the arguments: its connections are encrypted."""
    address = replace(free_address(), is_encrypted=True) if "https" in arguments else None
    rest = [argument for argument in arguments if argument != "https"]
    return Server("takes_socket:application", *rest, address=address, **options)


def ask(server, request):
    with server.client() as client:
        return client.ask(request)


def opened(server, path="/echo", more=b"", fields=b""):
    """A client whose connection the application has taken over."""
    client = server.client()
    client.send(b"GET %s HTTP/1.1\r\n%s%s\r\n%s" % (path.encode(), ASKS, fields, more))
    assert client.head().status == 101
    return client


@pytest.mark.parametrize("arguments", PLACES, ids=" ".join)
def test_bytes_pass_in_both_directions_and_the_response_is_discarded(arguments):
    with serving(*arguments) as server:
        # What comes with the request is read first.
        for path, more in (("/echo", b""), ("/echo", b"with it"), ("/gunicorn", b"")):
            with opened(server, path, more) as client:
                assert client.read(len(more)) == more
                client.send(b"behind it")
                assert client.read(9) == b"behind it"
                large = bytes(range(256)) * 2000
                for at in range(0, len(large), 16_000):
                    client.send(large[at : at + 16_000])
                    assert client.read(len(large[at : at + 16_000])) == large[at : at + 16_000]
                client.finish_sending()
                assert client.rest() == b""
            assert server.logged(f"{path}: the end was read, timeout None")
        with opened(server, "/large") as client:
            assert client.rest() == b"x" * 3_000_000
        # Others are answered as before.
        assert ask(server, b"GET /offered HTTP/1.1\r\nHost: a\r\n\r\n").body == b"False True None"
    assert "ERROR" not in server.log, server.log


@pytest.mark.parametrize("arguments", PLACES, ids=" ".join)
def test_a_request_whose_socket_is_not_used_is_answered_as_any_other(arguments):
    with serving(*arguments) as server, server.client() as client:
        for _ in range(2):
            response = client.ask(b"GET /offered HTTP/1.1\r\n%s\r\n" % ASKS)
            assert response.body == b"True True <the socket of a request; its use takes over the connection>"
        assert client.ask(b"GET /late HTTP/1.1\r\n%s\r\n" % ASKS).body == b"begun yes"
        assert client.ask(b"GET /closed HTTP/1.1\r\n%s\r\n" % ASKS).body == b"ok"
        assert client.ask(b"GET /broken HTTP/1.1\r\n%s\r\n" % ASKS).status == 500
        before = len(os.listdir(f"/proc/{server.pid}/fd"))
        for _ in range(5):
            client.ask(b"GET /offered HTTP/1.1\r\n%s\r\n" % ASKS)
        eventually(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) <= before, "the sockets are closed")


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /offered HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
        b"GET /offered HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"GET /offered HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"POST /offered HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
        b"GET /offered HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\na",
    ],
)
def test_what_does_not_ask_for_a_web_socket_gets_no_socket(request_head):
    with Server("takes_socket:application") as server, server.client() as client:
        version = "1.0" if b"HTTP/1.0" in request_head else "1.1"
        assert client.ask(request_head, version=version).body == b"False True None"


@pytest.mark.parametrize("arguments", PLACES, ids=" ".join)
def test_an_exception_after_the_take_over_is_logged_and_ends_the_connection(arguments):
    with serving(*arguments) as server:
        with opened(server, "/raises") as client:
            assert client.rest() == b""
        assert server.logged("ERROR: GET /raises: exception in the application, which had taken over the connection")
        assert server.logged("ValueError: in the middle")
        for path in ("/engineio", "/refused"):
            with opened(server, path) as client:
                assert client.rest() == b""
        assert server.logged("ConnectionRefusedError: [Errno 111] the database")
        assert "GET /engineio: exception" not in server.log
        assert ask(server, b"GET /offered HTTP/1.1\r\nHost: a\r\n\r\n").status == 200


@pytest.mark.parametrize("arguments", [(), ("https",)], ids=" ".join)
def test_a_thread_of_the_application_that_reads_on_gets_the_end(arguments):
    with serving(*arguments, threads=2) as server:
        # More than there may be at once.
        for _ in range(5):
            with opened(server, "/kept") as client:
                assert client.rest() == b""


def test_pages_of_other_sites_open_none_unless_their_origin_is_listed():
    evil, app = b"Origin: https://evil.example\r\n", b"Origin: https://app.example\r\n"
    with Server("takes_socket:application", "--websocket-origins", "same,https://app.example") as server:
        opened(server, fields=b"Origin: https://shop.example\r\n").close()
        opened(server, fields=app).close()
        for fields in (evil, app + evil, b"Origin: null\r\n", b"Origin:\r\n"):
            with server.client() as client:
                refused = client.ask(b"GET /echo HTTP/1.1\r\n%s%s\r\n" % (ASKS, fields))
                assert refused.status == 403 and b"may not open a WebSocket" in refused.body
        # It is no concern of requests that do not ask for one.
        assert server.get("/offered", "Origin: https://evil.example").status == 200
    assert server.log.count("add https://evil.example to --websocket-origins") == 1
    with Server("takes_socket:application", "--websocket-origins", "any") as server:
        opened(server, fields=evil).close()


def test_over_https_a_page_over_http_is_another_site():
    with serving("https") as server:
        opened(server, fields=b"Origin: https://shop.example\r\n").close()
        request = b"GET /echo HTTP/1.1\r\n%sOrigin: http://shop.example\r\n\r\n" % ASKS
        assert ask(server, request).status == 403


def test_behind_a_trusted_proxy_the_host_that_it_states_counts():
    arguments = ("--trusted-proxies", "127.0.0.1", "--forwarded-headers", "x-forwarded-host")
    with Server("takes_socket:application", *arguments) as server:
        fields = b"X-Forwarded-Host: front.example\r\nOrigin: https://front.example\r\n"
        opened(server, fields=fields).close()


def test_one_thread_is_kept_for_other_requests_and_the_count_is_shown():
    status = free_address()
    with Server("takes_socket:application", threads=3, status=status) as server:
        clients = [opened(server) for _ in range(2)]
        refused = ask(server, b"GET /echo HTTP/1.1\r\n%s\r\n" % ASKS)
        assert refused.status == 503 and b"as many WebSockets" in refused.body
        assert server.logged("2 WebSockets are open in this worker, and one thread is kept for other requests")
        assert server.get("/offered").status == 200
        eventually(lambda: metrics(status)["tailrace_web_sockets"] == 2, "they are counted")
        for client in clients:
            client.close()
        eventually(lambda: metrics(status)["tailrace_web_sockets"] == 0, "they are counted down")
        opened(server).close()


@pytest.mark.parametrize("arguments", [*PLACES, ("--gevent", "https")], ids=" ".join)
def test_a_server_that_stops_ends_them_at_once(arguments):
    with serving(*arguments, "--graceful-timeout", "100") as server:
        with opened(server, more=b"a") as client:
            assert client.read(1) == b"a"
            server.send_signal(signal.SIGTERM)
            assert client.rest() == b""
        assert server.wait() == 0
    assert "/echo: the end was read" in server.log


@pytest.mark.parametrize("arguments", [(), ("https",)], ids=" ".join)
def test_a_client_that_goes_on_sending_does_not_delay_the_end(arguments):
    with serving(*arguments, "--graceful-timeout", "100") as server, opened(server) as client:

        def send_on():
            with contextlib.suppress(OSError):
                while True:
                    client.sock.sendall(b"x" * 1000)

        sending = threading.Thread(target=send_on)
        sending.start()
        assert client.read(10_000) == b"x" * 10_000
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):
            while client.sock.recv(1 << 20):
                pass
        assert server.wait() == 0
        client.abort()
        sending.join()


def test_a_reload_ends_them_and_the_next_one_is_served_by_the_new_worker():
    with Server("takes_socket:application", "--graceful-timeout", "100") as server:
        (before,) = server.workers()
        with opened(server, more=b"a") as client:
            assert client.read(1) == b"a"
            server.send_signal(signal.SIGHUP)
            assert client.rest() == b""
        eventually(lambda: server.workers() not in ([], [before]), "the old worker has ended")
        opened(server).close()


def test_it_is_no_slow_request_and_has_no_deadline_and_is_not_cancelled(tmp_path):
    log = tmp_path / "access.log"
    options = {"request_timeout": 0.2, "slow_request_log": 0.2, "cancel_on_disconnect": "all", "access_log": log}
    with Server("takes_socket:application", access_log_format="{status} {ending}", **options) as server:
        with opened(server) as client:
            # Longer than both limits; what is due is looked at when other requests come.
            for _ in range(3):
                client.send(b"a")
                assert client.read(1) == b"a"
                assert server.get("/offered").status == 200
                time.sleep(0.15)
            client.abort()
        eventually(lambda: "101 " in log.read_text(), "the request has ended")
    assert "slow" not in server.log and "Traceback" not in server.log, server.log
    assert log.read_text().count("101 complete\n") == 1 and "504" not in log.read_text()


@pytest.mark.parametrize("more", [b"", b"with it"], ids=["alone", "relayed"])
@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("https",)], ids=" ".join)
def test_a_client_that_accepts_nothing_is_disconnected_and_its_thread_returns(arguments, more):
    with serving(*arguments, write_timeout=1) as server:
        with opened(server, "/endless", more):
            # It reads nothing, and the application sends as much as it can.
            assert server.logged("/endless: stopped by ", 60)
        assert ask(server, b"GET /offered HTTP/1.1\r\nHost: a\r\n\r\n").status == 200


@pytest.mark.parametrize("arguments", PLACES, ids=" ".join)
def test_the_application_is_told_that_the_client_has_left(arguments):
    with serving(*arguments) as server:
        with opened(server, "/told"):
            pass
        assert server.logged("/told: the client has left")


def test_a_response_that_is_cut_off_is_a_reset_also_after_a_request_that_was_offered_a_socket():
    with Server("takes_socket:application") as server, server.client() as client:
        assert client.ask(b"GET /offered HTTP/1.1\r\n%s\r\n" % ASKS).status == 200
        client.send(b"GET /cut HTTP/1.0\r\nHost: a\r\n\r\n")
        with pytest.raises(Broken) as broken:
            client.response(version="1.0")
        assert broken.value.reset


def test_a_server_with_one_thread_keeps_it_for_requests_that_end():
    with Server("takes_socket:application", threads=1) as server:
        assert ask(server, b"GET /echo HTTP/1.1\r\n%s\r\n" % ASKS).status == 503
        assert server.logged("0 WebSockets are open in this worker, and one thread is kept for other requests")
        assert server.get("/offered").status == 200


def test_a_server_without_descriptors_refuses_a_web_socket_and_serves_on():
    with Server("takes_socket:application", "--log-level", "warning", open_files=64) as server:
        clients = []
        refused = None
        while refused is None and len(clients) < 100:
            client = server.client()
            client.send(b"GET /echo HTTP/1.1\r\n%s\r\na" % ASKS)
            status = client.head().status
            clients.append(client)
            if status != 101:
                refused = status
        assert refused == 503
        assert server.logged("no socket for a WebSocket: ")
        for client in clients:
            client.close()
        eventually(lambda: ask(server, b"GET /offered HTTP/1.1\r\nHost: a\r\n\r\n").status == 200, "it serves")
        opened(server).close()
