"""Clients that pretend to be the holder, or more than they are."""

from __future__ import annotations

import json

import pytest
from harness.server import Server, shared
from harness.wire import Client

server = shared(Server, "srv_web_socket_requests:application", "--websocket-events", "/ws/", threads=4)
HANDSHAKE = (
    "GET /ws/a HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
POST = "POST /ws/a HTTP/1.1\r\nHost: test\r\nContent-Type: Application/WebSocket-Events; x=y\r\nContent-Length: 6\r\n"


def text(client):
    """The content of the next message of the server, which is short."""
    start = client.read(2)
    length = start[1] if start[1] < 126 else int.from_bytes(client.read(2), "big")
    return json.loads(client.read(length))


def test_a_client_cannot_send_what_the_application_keeps_in_its_connection(server):
    with Client(server.address) as client:
        client.send(f"{HANDSHAKE}Meta-User: admin\r\nMETA-Other: 1\r\nConnection-Id: forged\r\n\r\n".encode())
        assert client.head().status == 101
        first = text(client)
        assert list(first) == ["HTTP_CONNECTION_ID"] and first["HTTP_CONNECTION_ID"] != "forged"
        client.send(b"\x81\x81\0\0\0\0x")
        assert text(client) == {**first, "HTTP_META_USER": "of-application"}


@pytest.mark.parametrize("fields", ["", "X-Forwarded-For: 192.0.2.1\r\n", "Grip-Sig: x\r\n"])
def test_a_client_cannot_send_events_of_web_sockets_itself_though_a_trusted_proxy_passes_them_on(server, fields):
    with Client(server.address) as client:
        refused = client.ask(f"{POST}{fields}Connection: close\r\n\r\nOPEN\r\n".encode())
        assert refused.status == 403, refused.body
