"""The address of `--status`, as its users ask it."""

import json
from pathlib import Path

from harness.server import children
from harness.wire import Client


def ask(address, target, method="GET", *fields):
    with Client(address) as client:
        client.send(
            "\r\n".join([f"{method} {target} HTTP/1.1", "Host: test", "Connection: close", *fields, "", ""]).encode()
        )
        response = client.response(method)
        client.at_end()
        return response


def answer(address, target):
    response = ask(address, target)
    assert response.status == 200, response
    return json.loads(response.body)


def reachable(address):
    try:
        address.connect().close()
    except OSError:
        return False
    return True


def is_ready(address):
    """Whether the server of this address of `--status` serves."""
    return reachable(address) and ask(address, "/ready").status == 200


def status_process(server):
    """The number of the status process."""
    for child in children(server.process.pid):
        if b"status" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"[")[0]:
            return child
    return None
