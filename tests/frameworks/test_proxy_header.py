"""HAProxy in front that states the client by a PROXY header of version 1 or 2."""

import json
import socket

import pytest
from frameworks.process import Process
from harness.addresses import free_address
from harness.server import Server
from harness.tools import need_tool

HAPROXY = need_tool("haproxy")

CONFIG = """
defaults
    mode %(mode)s
    timeout connect 5s
    timeout client 20s
    timeout server 20s
listen all
    bind %(listen)s
    server tailrace %(server)s %(send)s
"""


@pytest.mark.parametrize("mode", ["http", "tcp"])
@pytest.mark.parametrize(("version", "send"), [("v1", "send-proxy"), ("v2", "send-proxy-v2"), ("any", "send-proxy-v2")])
def test_the_client_of_haproxy_is_the_client(mode, version, send):
    address, front = free_address(), free_address()
    bind = f"http://{address.bind}?proxy={version}"
    with Server("fw_delivery:app", "--bind", bind, address=address, trusted_proxies="127.0.0.1") as server:
        config = CONFIG
        for key, text in {"mode": mode, "listen": front.bind, "server": address.bind, "send": send}.items():
            config = config.replace(f"%({key})s", text)
        command = (HAPROXY, "-db", "-f", "{directory}/haproxy.cfg")
        with Process(*command, address=front, files={"haproxy.cfg": config}, statuses=(0, 143, -15)) as haproxy:
            # An address of the client's own, which is not that of HAProxy's connection.
            with socket.create_connection((front.host, front.port), 20, source_address=("127.0.0.9", 0)) as client:
                client.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                answer = b"".join(iter(lambda: client.recv(65536), b""))
                port = client.getsockname()[1]
            body = answer.partition(b"\r\n\r\n")[2]
            environ = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])
            assert (environ["REMOTE_ADDR"], environ["REMOTE_PORT"]) == ("127.0.0.9", str(port))
            assert haproxy.process.poll() is None
        assert "--trusted-proxies" not in server.log
