"""`tailrace.socketio.Manager` with python-socketio alone: channels, and how large a message may be."""

from __future__ import annotations

import contextlib
import queue
import re
from pathlib import Path

import pytest
import socketio
from harness.addresses import free_address
from harness.server import Server
from server.probes import eventually

from tailrace.errors import PublishError
from tailrace.socketio import Manager

GUIDE = Path(__file__).parents[2] / "docs/guides/socketio.md"


@contextlib.contextmanager
def serving(**options):
    publishes = free_address()
    with Server("srv_socketio_managers:application", workers=2, publish_bind=publishes, **options) as server:
        eventually(lambda: server.log.count("ready in") == 2, "all workers")
        yield server, publishes
        assert "Traceback" not in server.log, server.log


@contextlib.contextmanager
def connected(server, path, transports):
    """A client, and the events that it gets."""
    made, events = socketio.Client(), queue.Queue()
    made.on("*", lambda event, *data: events.put((event, *data)))
    made.connect(server.url, socketio_path=f"{path}socket.io", transports=transports, wait_timeout=20)
    try:
        yield made, events
    finally:
        made.disconnect()


@contextlib.contextmanager
def clients_of_both_workers(server, path, publishes, channel, transports=("websocket",)):
    """A client of each worker, and the events that it gets, by the number of its process."""
    manager = Manager(channel, write_only=True, to=publishes.bind)
    with contextlib.ExitStack() as stack:
        found = {}
        while len(found) < 2:
            made, events = stack.enter_context(connected(server, path, list(transports)))
            found[made.call("pid", timeout=20)] = made, events

        def both_hear():
            # A worker listens soon after its first client has connected.
            manager.emit("ready", 0)
            return all(not events.empty() for _, events in found.values())

        eventually(both_hear, "both workers listen")
        manager.emit("begin", 0)
        for _, events in found.values():
            while next_of(events) != ("begin", 0):
                pass
        yield found


@contextlib.contextmanager
def listening(server, name, publishes):
    """The events of a client of each worker, by the number of its process."""
    # WebSockets alone need no --sticky.
    with clients_of_both_workers(server, f"{name}/", publishes, name) as found:
        yield {pid: events for pid, (_, events) in found.items()}


def next_of(events):
    return events.get(timeout=20)


def test_managers_with_different_channels_do_not_hear_each_other():
    with (
        serving() as (server, publishes),
        listening(server, "shop", publishes) as shop,
        listening(server, "blog", publishes) as blog,
    ):
        for number in range(10):
            # Any worker may be the one that emits.
            assert server.get(f"/emit/shop?data=shop{number}").status == 200
            assert server.get(f"/emit/blog?data=blog{number}").status == 200
        for name, clients in (("shop", shop), ("blog", blog)):
            for events in clients.values():
                got = {next_of(events) for _ in range(10)}
                assert got == {("news", f"{name}{number}") for number in range(10)}
        # Nor does what comes from outside the server.
        for name in ("shop", "blog"):
            Manager(name, write_only=True, to=publishes.bind).emit("news", f"to {name}")
        for name, clients in (("shop", shop), ("blog", blog)):
            for events in clients.values():
                assert next_of(events) == ("news", f"to {name}")


def test_a_message_of_900_kb_reaches_all_workers():
    size = 900_000
    with serving() as (server, publishes), listening(server, "shop", publishes) as clients:
        assert server.get(f"/emit/shop?size={size}").status == 200
        for events in clients.values():
            assert next_of(events) == ("news", "x" * size)
        Manager("shop", write_only=True, to=publishes.bind).emit("news", "y" * size)
        for events in clients.values():
            assert next_of(events) == ("news", "y" * size)


def test_a_message_above_the_limit_is_an_error_that_says_so():
    size = 1_100_000
    with serving() as (server, publishes), listening(server, "shop", publishes) as clients:
        with pytest.raises(PublishError, match="413 A document may have 1048576 bytes"):
            Manager("shop", write_only=True, to=publishes.bind).emit("news", "y" * size)
        # The clients of the worker that emits get it, and the log says that the others do not.
        pid = int(server.get(f"/emit/shop?size={size}").body)
        assert next_of(clients.pop(pid)) == ("news", "x" * size)
        assert server.logged("clients of other workers did not get a message: the document has "), server.log
        (other,) = clients.values()
        assert server.get("/emit/shop?data=small").status == 200
        assert next_of(other) == ("news", "small")


ALONE = """
import os
import socketio
from tailrace.socketio import Manager

server = {expression}
app = socketio.WSGIApp(server)


@server.on("pid")
def pid(sid):
    return os.getpid()


@server.on("say")
def say(sid, text):
    server.emit("said", text)
"""


@pytest.mark.parametrize("transports", [["polling"], ["polling", "websocket"], ["websocket"]], ids="-".join)
def test_python_socketio_alone_as_the_guide_has_it(tmp_path, transports):
    expression = re.search(r"With python-socketio alone, write\s+`(.*?)`", GUIDE.read_text())[1]
    (tmp_path / "alone.py").write_text(ALONE.format(expression=expression))
    publishes = free_address()
    options = {"sticky": "query:sid", "workers": 2, "publish_bind": publishes}
    with Server("alone:app", directory=tmp_path, **options) as server:
        eventually(lambda: server.log.count("ready in") == 2, "all workers")
        with clients_of_both_workers(server, "", publishes, "socketio", transports) as clients:
            for pid, (made, _) in clients.items():
                made.emit("say", f"from {pid}")
                for _, events in clients.values():
                    assert next_of(events) == ("said", f"from {pid}")
        assert "Traceback" not in server.log, server.log
