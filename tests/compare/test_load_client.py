"""The client that measures, against real servers."""

import os
import signal
import socket
import threading

import pytest
from harness.server import Server

from tailrace._tailrace import load

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def answered(address, request=REQUEST, connections=4, seconds=0.3, patience=20.0):
    """What the client counts, and that no connection failed."""
    found = load(address, request, connections=connections, seconds=seconds, patience=patience)
    faults = {name: count for name, count in found.items() if name.endswith("_errors") or name == "timeouts"}
    assert not any(faults.values()), faults
    assert len(found["latencies"]) == found["answers"]
    assert found["latencies"] == sorted(found["latencies"])
    return found


@pytest.fixture(scope="module")
def server():
    with Server("srv_shapes:app") as server:
        yield server


@pytest.mark.parametrize("path", ["/", "/list?size=200000", "/generator?size=50000&block=700&key=k"])
@pytest.mark.parametrize("end", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_responses_of_every_framing_are_counted(server, path, end):
    request = b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (path.encode(), end)
    found = answered((server.address.host, server.address.port), request)
    assert found["answers"] > 0
    assert found["refusals"] == 0
    assert found["seconds"] >= 0.3


def test_refusals_are_answers_with_an_error_status(server):
    found = answered((server.address.host, server.address.port), b"GET / HTTP/1.1\r\n\r\n")
    assert found["refusals"] == found["answers"] > 0


def test_a_signal_handler_that_raises_ends_it(server):
    def interrupt(number, frame):
        raise InterruptedError("enough")

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(InterruptedError, match="enough"):
            load((server.address.host, server.address.port), REQUEST, connections=1, seconds=60, patience=1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_port_where_nobody_listens_is_counted():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    found = load(("127.0.0.1", port), REQUEST, connections=2, seconds=0.2, patience=1)
    assert found["connect_errors"] >= 2
    assert found["answers"] == 0


@pytest.mark.parametrize(
    ("address", "values", "what"),
    [
        (("localhost", 80), {}, "not an IP address"),
        (("127.0.0.1", 80), {"seconds": -1}, "seconds: -1"),
        (("127.0.0.1", 80), {"patience": float("nan")}, "patience: NaN"),
    ],
)
def test_wrong_values_are_named(address, values, what):
    with pytest.raises(ValueError, match=what):
        load(address, REQUEST, **{"connections": 1, "seconds": 1, "patience": 1, **values})
