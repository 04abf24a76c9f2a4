"""A greenlet that blocks the hub is logged with its stack and request; a busy hub is not logged."""

import os
import re
from contextlib import ExitStack

import pytest
from harness.greenlets import on_greenlets
from harness.waits import until_it_wakes
from server.probes import asking, await_waiting, eventually, open_gate, request

HAS_BEEN = "the hub has been blocked for"
WAS = "the hub was blocked for"


@pytest.fixture
def server():
    with on_greenlets() as server:
        server.get("/")
        yield server


def entries(server, words):
    """The log's entries that have these words, each with the stack below it."""
    found = []
    for line in server.log.splitlines():
        if re.match(r"\S", line) and (words in line or not found):
            found.append(line)
        elif found and not re.match(r"\S", line):
            found[-1] += "\n" + line
    return [entry for entry in found if words in entry]


@pytest.mark.parametrize("way", ["open_fifo", "crunch", "sleep_unpatched"])
def test_a_greenlet_that_blocks_the_hub_is_reported_while_it_does(server, tmp_path, way):
    # Fails when the watch needs the hub itself, shows another greenlet's stack, or reports one block twice.
    file = tmp_path / "file"
    if way == "open_fifo":
        os.mkfifo(file)
    with ExitStack() as stack:
        sleeping = stack.enter_context(asking(server, "/sleep?seconds=0.01&key=k"))
        sleeping.response()
        target = f"/hang?way={way}&with={file}"
        client = stack.enter_context(asking(server, target))
        assert server.logged(HAS_BEEN)
        # It is still blocked: the file is what ends it.
        if way == "open_fifo":
            os.close(os.open(file, os.O_WRONLY))
        else:
            file.touch()
        assert client.response().status == 200
        assert server.logged(WAS)
    server.get("/")
    (entry,) = entries(server, HAS_BEEN)
    assert f"GET {target}" in entry
    assert f"in {way}\n" in entry or entry.endswith(f"in {way}") or f"in {way}" in entry
    assert "in hang\n" in entry
    (after,) = entries(server, WAS)
    assert f"GET {target}" in after


@pytest.mark.parametrize("path", ["/hang?way=sleep_in_one_call&with=1", "/blocked_beside_a_request?with=1"])
def test_a_call_that_sleeps_in_c_is_reported_with_its_place(server, path):
    # Fails when the log names a request that happens to be in flight beside a greenlet of the application.
    with asking(server, path) as client:
        assert client.response().status == 200
    assert server.logged(WAS)
    (entry,) = entries(server, HAS_BEEN)
    assert "in sleep_in_one_call" in entry
    assert "real_sleep(float(seconds))" in entry
    assert "/blocked_beside" not in entry


def test_a_callback_of_the_hub_that_blocks_is_reported(server):
    with server.client() as client:
        client.ask(request("/block_in_a_callback?with=1"))
        # Something must wait for the hub to be missed.
        assert client.ask(request("/")).body == b"pong"
    assert server.logged(HAS_BEEN)
    assert "in sleep_in_one_call" in entries(server, HAS_BEEN)[0]


def test_a_hub_that_is_merely_busy_is_not_reported(server):
    # A second of work in pieces of 5 ms, all due at once; fails when only the age of the wakeup counts.
    with ExitStack() as stack:
        clients = [stack.enter_context(asking(server, "/burn?gate=burn&seconds=0.005")) for _ in range(200)]
        await_waiting(server, "burn", 200)
        open_gate(server, "burn")
        for client in clients:
            assert client.response().body == b'"burnt"'
        assert HAS_BEEN not in server.log


def test_an_idle_server_sleeps(server):
    # Fails when the watch, the hub or the I/O thread looks round though there is nothing to see.
    server.get("/sleep?seconds=0.05&key=k")
    eventually(lambda: until_it_wakes(server.pid) >= 1, "a server that sleeps")


def test_the_first_request_after_an_idle_time_is_monitored(server):
    # Fails when the watch that sleeps with the hub is not woken with it.
    for _ in range(2):
        eventually(lambda: until_it_wakes(server.pid) >= 1, "a server that sleeps")
        # Longer than it takes until the next report may be.
        with asking(server, "/hang?way=sleep_in_one_call&with=1.5") as client:
            assert client.response().status == 200
    eventually(lambda: server.log.count(WAS) == 2, "two reports")
    assert server.log.count(HAS_BEEN) == 2
