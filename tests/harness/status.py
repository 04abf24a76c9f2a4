"""The address of `--status`, as its users ask it."""

import json
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

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


def metrics(address):
    """Each sample without labels, and those with one label as `name{value}`."""
    response = ask(address, "/metrics")
    assert response.status == 200, response
    found = {}
    for family in text_string_to_metric_families(response.body.decode()):
        for sample in family.samples:
            label = "".join(sample.labels.values()) if len(sample.labels) == 1 else ""
            found[sample.name + f"{{{label}}}" * bool(label)] = sample.value
    return found


def document(address):
    return answer(address, "/status.json")


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
