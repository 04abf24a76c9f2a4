"""WebSockets without threads: what they survive, what closes them, and what the application may do with them."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.held import figures, holder_process, item, publish, spare_descriptors
from harness.operated import operating
from harness.server import APPS, Server, shared
from harness.web_sockets import WebSocketClient
from harness.wire import Client
from server.probes import eventually, ready
from wsproto.events import CloseConnection, Ping

GUIDE = (Path(__file__).parents[2] / "docs/guides/websockets.md").read_text()
EVENTS = ("--websocket-events", "/ws/")
PUBLISH = free_address()
HANDSHAKE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
server = shared(Server, "srv_web_socket_echo:application", *EVENTS, "--publish-bind", PUBLISH.bind)


def serving(**options):
    return Server("srv_web_socket_echo:application", *EVENTS, **options)


def say_news(address, text):
    publish(address, item("news", formats={"ws-message": {"content": text}}))


# What they survive


def test_they_survive_killed_workers(tmp_path):
    with operating(
        tmp_path, "srv_web_socket_echo:application", *EVENTS, "--workers", "2", environment={"PYTHONPATH": str(APPS)}
    ) as server:
        with WebSocketClient(server.address) as client:
            client.echoes("before")
            for _ in range(2):
                killed = [pid for pid in ready(server) if pid in server.processes()]
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
                server.until(lambda before=killed: not set(before) & set(server.processes()), "their ends")
                client.echoes("meanwhile")
                server.until(lambda before=killed: len(set(ready(server)) - set(before)) >= 2, "other workers")
                client.echoes("after")
        assert server.log.count("holds connections") == 1
        server.until(lambda: figures(server.master)["connections"] == 0, "its end")


def test_they_survive_workers_that_are_recycled():
    with serving(workers=2, max_requests=5) as server, WebSocketClient(server.address) as client:

        def is_recycled():
            client.echoes("again")
            return len(ready(server)) >= 6

        eventually(is_recycled, "four more workers")
        client.echoes("after")
        assert server.log.count("holds connections") == 1


def test_a_holder_that_is_killed_closes_them_and_new_ones_work():
    with serving() as server:
        with WebSocketClient(server.address) as client:
            client.echoes("before")
            killed = holder_process(server.process.pid)
            os.kill(killed, signal.SIGKILL)
            assert client.client.rest() == b""
        assert server.logged(f"the process that holds connections (pid {killed}) was killed by SIGKILL")
        assert server.logged("its connections are closed, and a new one starts")
        with WebSocketClient(server.address) as client:
            client.echoes("after")
        assert holder_process(server.process.pid) not in (None, killed)


def test_over_tls_they_work_until_a_reload_closes_them():
    publishes = free_address()
    address = replace(free_address(), is_encrypted=True)
    with serving(address=address, publish_bind=publishes) as server:
        with WebSocketClient(server.address) as client:
            for message in ("", "text", b"bytes", "x" * 300_000):
                client.echoes(message)
            say_news(publishes, "news")
            assert client.message() == "news"
            (before,) = ready(server)
            server.send_signal(signal.SIGHUP)
            closed = client.event()
            # 1012: the service restarts (the registry of RFC 6455 section 11.7).
            assert isinstance(closed, CloseConnection) and closed.code == 1012
            client.client.send(client.connection.send(closed.response()))
            assert client.client.rest() == b"" and not client.client.reset
        assert server.logged(f"(pid {before}) has ended")
        with WebSocketClient(server.address) as client:
            client.echoes("after")
            client.client.abort()
        eventually(lambda: figures(server.process.pid)["connections"] == 0, "its end")


def test_what_is_published_while_a_client_is_disconnected_is_not_sent_later(server):
    with WebSocketClient(server.address) as client:
        client.echoes("subscribed")
        say_news(PUBLISH, "heard")
        assert client.message() == "heard"
    eventually(lambda: figures(server.process.pid)["connections"] == 0, "it has left")
    say_news(PUBLISH, "missed")
    with WebSocketClient(server.address, "/ws/a", ("Last-Event-ID", "unknown")) as client:
        client.echoes("subscribed")
        say_news(PUBLISH, "heard")
        assert client.message() == "heard"


@pytest.mark.nightly
def test_a_ping_is_sent_after_a_time_without_a_message(server):
    assert "sends a ping after 30 s without a message" in GUIDE
    with WebSocketClient(server.address) as client:
        client.client.sock.settimeout(120)
        ping = client.event()
        assert isinstance(ping, Ping)
        client.client.send(client.connection.send(ping.response()))
        client.echoes("still there")


def test_without_descriptors_further_clients_are_refused_and_the_others_stay_open():
    asked = f"GET /ws/a HTTP/1.1\r\nHost: test\r\n{HANDSHAKE}".encode()
    with serving() as server, WebSocketClient(server.address) as client:
        client.echoes("before")
        with spare_descriptors(holder_process(server.process.pid), 1, 2), Client(server.address) as refused:
            refused.send(asked)
            response = refused.response()
            assert (response.status, response["retry-after"]) == (503, "10")
            refused.at_end(clean=True)
        assert server.logged("has no file descriptor left; raise the limit of open files")
        with WebSocketClient(server.address) as later:
            for each in (client, later):
                each.echoes("after")


# What the application may do


@pytest.mark.parametrize("status", ["201 Created", "204 No Content", "206 Partial Content", "299 Other"])
def test_no_other_status_than_200_accepts(server, status):
    with Client(server.address) as client:
        client.send(f"GET /ws/a?status={status.replace(' ', '+')} HTTP/1.1\r\nHost: test\r\n{HANDSHAKE}".encode())
        assert client.response().status == int(status.split()[0])
        client.at_end(clean=True)


@pytest.mark.parametrize(
    ("field", "instead", "sentence"),
    [
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", b"Sec-WebSocket-Key"),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "Sec-WebSocket-Key: short\r\n", b"Sec-WebSocket-Key"),
        ("Version: 13\r\n", "Version: 13\r\nSec-WebSocket-Version: 13\r\n", b"version 13"),
        ("Sec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Version: 8\r\n", b"version 13"),
    ],
)
def test_a_handshake_that_lacks_something_does_not_reach_the_application(server, field, instead, sentence):
    assert field in HANDSHAKE
    with Client(server.address) as client:
        client.send(f"GET /ws/a HTTP/1.1\r\nHost: test\r\n{HANDSHAKE.replace(field, instead)}".encode())
        response = client.response()
        assert response.status == 400 and sentence in response.body


def test_the_log_says_what_the_client_got_and_why_the_application_did_not_open_it():
    with serving(access_log="-") as server:
        for query, status in (("type=text/html", 502), ("status=403+Forbidden", 403)):
            with Client(server.address) as client:
                client.send(f"GET /ws/a?{query} HTTP/1.1\r\nHost: test\r\n{HANDSHAKE}".encode())
                assert client.response().status == status
        assert server.logged(
            "GET /ws/a?type=text/html: the application did not open the WebSocket: the content type of its response is "
            '"text/html", not application/websocket-events'
        )
        with WebSocketClient(server.address) as client:
            client.echoes("open")
        assert server.logged('"POST /ws/a?status=403+Forbidden HTTP/1.1" 403')
        # The application answers a request of the holder, and that is the only one.
        assert '" 101 ' not in server.log and '"GET ' not in server.log


def test_the_application_keeps_a_limited_number_and_size_of_values(server):
    found = re.search(r"up to (\d+) values per connection, (\d+) KiB in total", GUIDE)
    most, size = int(found[1]), int(found[2]) * 1024

    def kept(count, length):
        with WebSocketClient(server.address, f"/ws/a?values={count}-{length}") as client:
            client.say("values?")
            return json.loads(client.message())

    assert kept(most, 1) == {f"HTTP_META_{number}": 1 for number in range(most)}
    # Further ones are not kept, and the others are.
    assert kept(most + 1, 1) == kept(most, 1)
    assert kept(1, size - 1) == {"HTTP_META_0": size - 1}
    assert kept(1, size) == {}
    assert kept(10, 1000) == {f"HTTP_META_{number}": 1000 for number in range(8)}


def test_no_library_can_take_over_their_connections(server):
    with WebSocketClient(server.address) as client:
        client.say("sockets?")
        assert json.loads(client.message()) == []
    assert server.get("/ws/a").status == 200


# Compression


def test_messages_are_compressed_from_the_length_of_the_guide_on(server):
    least = int(re.search(r"Messages of (\d+) bytes or more are compressed", GUIDE)[1])
    with WebSocketClient(server.address) as client:
        for length, is_compressed in ((least - 1, False), (least, True)):
            client.received = 0
            client.echoes("x" * length)
            assert (client.received < length) == is_compressed
            client.received = 0
            say_news(PUBLISH, "x" * length)
            assert client.message() == "x" * length
            assert (client.received < length) == is_compressed


# What breaks the rules of RFC 6455


def frame(first, content=b"", is_masked=True):
    """A frame of less than 64 KiB, with a mask of zeros."""
    bit = 0x80 * is_masked
    short = len(content) < 126
    length = bytes([bit | len(content)]) if short else bytes([bit | 126]) + len(content).to_bytes(2, "big")
    return bytes([first]) + length + bytes(4 * is_masked) + content


FINAL = 0x80
CONTINUATION, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(frame(FINAL | TEXT, b"x", is_masked=False), 1002, id="no mask"),
        pytest.param(frame(FINAL | TEXT, b"\xff"), 1007, id="no UTF-8"),
        pytest.param(frame(FINAL | TEXT, b"\xed\xa0\x80"), 1007, id="a surrogate"),
        pytest.param(frame(TEXT, b"\xe2\x82") + frame(FINAL | CONTINUATION, b"x"), 1007, id="no UTF-8 over two frames"),
        pytest.param(frame(FINAL | CONTINUATION, b"x"), 1002, id="a continuation of nothing"),
        pytest.param(frame(TEXT, b"x") + frame(FINAL | TEXT, b"x"), 1002, id="a message within a message"),
        pytest.param(frame(FINAL | 3), 1002, id="a reserved opcode"),
        pytest.param(frame(FINAL | 0xB), 1002, id="a reserved opcode of control"),
        pytest.param(frame(FINAL | 0x40 | TEXT, b"x"), 1002, id="compressed without an agreement"),
        pytest.param(frame(FINAL | 0x20 | TEXT, b"x"), 1002, id="a reserved bit"),
        pytest.param(frame(PING), 1002, id="a ping in parts"),
        pytest.param(frame(FINAL | PING, b"x" * 126), 1002, id="a long ping"),
        pytest.param(frame(FINAL | CLOSE, b"x"), 1002, id="half a code"),
        pytest.param(frame(FINAL | CLOSE, (1005).to_bytes(2, "big")), 1002, id="a code that is never sent"),
        pytest.param(frame(FINAL | CLOSE, (1000).to_bytes(2, "big") + b"\xff"), 1007, id="a reason that is no UTF-8"),
    ],
)
def test_what_breaks_the_rules_without_compression_is_closed_with_a_code(server, sent, code):
    with WebSocketClient(server.address) as other:
        with WebSocketClient(server.address, offers=False) as client:
            client.echoes("before")
            client.client.send(sent)
            closed = client.event()
            assert isinstance(closed, CloseConnection) and closed.code == code, closed
        other.echoes("still there")
