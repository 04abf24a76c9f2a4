"""Clients that pretend to be the holder, or more than they are."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import pytest
from harness.held import Stream, holder_address, item
from harness.limited_user import prefix
from harness.packets import packet, variables
from harness.server import Server, shared
from harness.wire import Client
from server.probes import told

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


CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.settimeout(30)
    line.connect(b"\\0" + bytes.fromhex(sys.argv[1]))
    try:
        line.sendall(bytes.fromhex(sys.argv[2]))
        print(line.recv(1))
    except (BrokenPipeError, ConnectionResetError):
        print(b"")
"""


def test_a_process_of_another_user_can_neither_publish_nor_ask_the_application():
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    with Server("srv_held:application") as server, Stream(server.address, "/hold/a") as stream:

        def answer(purpose, message, *user):
            name = holder_address(server.process.pid, purpose)
            command = [sys.executable, *user, "-c", CONNECT, name.hex(), message.hex()]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

        def publication(content):
            document = json.dumps({"items": [item("a", f"data: {content}\n\n")]}).encode()
            return struct.pack("<I", len(document) + 1) + b"P" + document

        assert answer("holder", publication("forged"), *prefix()) == "b''\n"
        assert server.logged("the process that holds connections rejected a connection from user ID 1")
        assert answer("holder", publication("of the same user")) == "b'+'\n"
        told(server, "/publish/a")
        assert stream.data(2) == ["of the same user", "0"]
        assert answer("application", packet(variables("/pid")), *prefix()) == "b''\n"
        assert answer("application", packet(variables("/pid"))) == "b'H'\n"
