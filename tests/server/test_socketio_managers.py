"""`tailrace.socketio.Manager` with python-socketio alone: channels, and how large a message may be."""

from __future__ import annotations

import contextlib
import queue

import pytest
import socketio
from harness.addresses import free_address
from harness.server import Server
from server.probes import eventually

from tailrace.errors import PublishError
from tailrace.socketio import Manager


@contextlib.contextmanager
def serving(**options):
    publishes = free_address()
    with Server("srv_socketio_managers:application", workers=2, publish_bind=publishes, **options) as server:
        eventually(lambda: server.log.count("ready in") == 2, "all workers")
        yield server, publishes
        assert "Traceback" not in server.log, server.log


@contextlib.contextmanager
def client(server, name):
    """A client of one of the Socket.IO servers: its process, and the events that it gets."""
    made, events = socketio.Client(), queue.Queue()
    made.on("*", lambda event, *data: events.put((event, *data)))
    # Such a client needs no --sticky.
    made.connect(server.url, socketio_path=f"{name}/socket.io", transports=["websocket"], wait_timeout=20)
    try:
        yield made.call("pid", timeout=20), events
    finally:
        made.disconnect()


@contextlib.contextmanager
def clients_of_both_workers(server, name, publishes):
    """A client of each worker; by the number of its process, the events that it gets."""
    manager = Manager(name, write_only=True, to=publishes.bind)
    with contextlib.ExitStack() as stack:
        found = {}
        while len(found) < 2:
            pid, events = stack.enter_context(client(server, name))
            found[pid] = events

        def both_hear():
            # A worker listens soon after its first client has connected.
            manager.emit("ready", 0)
            return all(not events.empty() for events in found.values())

        eventually(both_hear, "both workers listen")
        manager.emit("begin", 0)
        for events in found.values():
            while next_of(events) != ("begin", 0):
                pass
        yield found


def next_of(events):
    return events.get(timeout=20)


def test_managers_with_different_channels_do_not_hear_each_other():
    with (
        serving() as (server, publishes),
        clients_of_both_workers(server, "shop", publishes) as shop,
        clients_of_both_workers(server, "blog", publishes) as blog,
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
    with serving() as (server, publishes), clients_of_both_workers(server, "shop", publishes) as clients:
        assert server.get(f"/emit/shop?size={size}").status == 200
        for events in clients.values():
            assert next_of(events) == ("news", "x" * size)
        Manager("shop", write_only=True, to=publishes.bind).emit("news", "y" * size)
        for events in clients.values():
            assert next_of(events) == ("news", "y" * size)


def test_a_message_above_the_limit_is_an_error_that_says_so():
    size = 1_100_000
    with serving() as (server, publishes), clients_of_both_workers(server, "shop", publishes) as clients:
        with pytest.raises(PublishError, match="413 A document may have 1048576 bytes"):
            Manager("shop", write_only=True, to=publishes.bind).emit("news", "y" * size)
        # The clients of the worker that emits get it, and the log says that the others do not.
        pid = int(server.get(f"/emit/shop?size={size}").body)
        assert next_of(clients.pop(pid)) == ("news", "x" * size)
        assert server.logged("Socket.IO: clients of other workers did not get a message: "), server.log
        (other,) = clients.values()
        assert server.get("/emit/shop?data=small").status == 200
        assert next_of(other) == ("news", "small")
