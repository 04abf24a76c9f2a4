"""Files and large blocks with greenlets: the I/O thread sends them; the thread of the hub sends only small
responses."""

import contextlib
import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.greenlets import on_greenlets
from harness.tools import need_tool
from server.probes import asking, descriptors, digest, eventually, pattern, peak, reading, request, resident, taken

INLINE = 128 << 10
# A head goes before the body.
HEAD = 4096
SENDS = "sendfile,writev,sendmsg,sendto,write,splice"


class Traced:
    """The system calls with which one thread sends, while the context lasts: `calls` has each with its result."""

    def __init__(self, thread, path):
        self.thread, self.path = thread, path
        self.calls = []

    def __enter__(self):
        command = [need_tool("strace"), "-y", "-p", str(self.thread), "-e", f"trace={SENDS}", "-o", str(self.path)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        said = self.process.stderr.readline()
        assert b"attached" in said, said
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=20)
        for line in self.path.read_text().splitlines():
            # Not what the application writes into its files.
            if found := re.match(r"(\w+)\(\d+<socket:.*= (-?\d+)", line):
                self.calls.append((found[1], int(found[2])))


@pytest.fixture(scope="module")
def server():
    with on_greenlets("srv_greenlets:app") as server:
        server.get("/")
        yield server


def test_the_io_thread_does_not_sleep_between_sequential_requests(server, tmp_path):
    # Fails when the I/O thread sleeps after each request that it has handed over, whether or not the hub has others.
    # On a busy machine, where the hub gets no processor for long, it may now and then.
    asked = 200
    assert _sleeps_of_the_io_thread(server, asked, tmp_path / "calls") < asked / 2


def _sleeps_of_the_io_thread(server, asked, path):
    """How often the I/O thread sleeps during so many requests of one connection."""
    # A thread that it starts has its name at first.
    while len(tasks := threads_called(server.pid, "tailrace-io")) > 1:
        time.sleep(0.01)
    (task,) = tasks
    sleeps = "trace=nanosleep,clock_nanosleep,futex"
    command = [need_tool("strace"), "-p", task.name, "-e", sleeps, "-o", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer, server.client() as client:
        assert b"attached" in tracer.stderr.readline()
        for _ in range(asked):
            assert client.ask(request("/")).body == b"pong"
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=20)
    # That the hub has done its work ends a wait; where it got no processor, time may have.
    return sum("nanosleep" in line or "ETIMEDOUT" in line for line in path.read_text().splitlines())


def threads_called(pid, name):
    """Their directories in /proc."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text() == f"{name}\n":
                found.append(task)
    return found


def test_the_hub_thread_sends_no_file_and_nothing_large(server, tmp_path):
    # Fails when the thread that runs all greenlets copies megabytes, or sends a file.
    size = 64 << 20
    with Traced(server.pid, tmp_path / "calls") as traced, ExitStack() as stack:
        targets = [f"/file?size={size}", f"/file?size={size}&wrapped=1", f"/list?size={size}&block={1 << 20}"]
        targets += [
            f"/generator?size={size}&block={1 << 20}",
            f"/bytes?size={size}",
            "/generator?size=8000000&block=128",
        ]
        clients = [stack.enter_context(asking(server, target)) for target in targets]
        others = stack.enter_context(server.client())
        for client in clients[:-1]:
            for _ in range(20):
                assert others.ask(request("/")).body == b"pong"
            assert taken(client, client.head()) == digest(pattern(size))
        assert taken(clients[-1], clients[-1].head()) == digest(pattern(8_000_000))
    sent = [(name, count) for name, count in traced.calls if count > 100]
    assert len(sent) >= 100, "the pongs are not among them: this is not the hub's thread"
    assert not [call for call in sent if call[0] in ("sendfile", "splice")]
    assert not [call for call in sent if call[1] > INLINE + HEAD]


def test_a_sparse_gigabyte_needs_no_memory_and_holds_nobody_up(server, tmp_path):
    path = tmp_path / "gigabyte"
    path.touch()
    os.truncate(path, 1 << 30)
    with on_greenlets("srv_crowd:app") as server, ExitStack() as stack:
        server.get("/")
        before = resident(server)
        large = stack.enter_context(asking(server, f"/at?path={path}"))
        head = large.head()
        others = stack.enter_context(server.client())
        for _ in range(16):
            piece = large.read(4 << 20)
            assert piece == bytes(4 << 20)
            assert others.ask(request("/")).body == b"pong"
        assert head["content-length"] == str(1 << 30)
        assert resident(server) - before < 12 << 20


def test_slow_readers_of_large_blocks_are_given_up_and_give_their_memory_back():
    # Fails when what was kept by reference stays until something else happens on the hub.
    size = 8 << 20
    with on_greenlets("srv_greenlets:app", write_timeout=1) as server, ExitStack() as stack:
        server.get("/")
        before, open_before = resident(server), descriptors(server)
        slow = [stack.enter_context(reading(server, f"/list?size={size}&block={1 << 20}")) for _ in range(20)]
        for client in slow:
            client.head()
        # Each block was queued whole, by reference, and no greenlet waits; the first client may be disconnected by now.
        assert peak(server) - before > 2 * size
        eventually(lambda: descriptors(server) <= open_before, "all given up")
        eventually(lambda: resident(server) - before < size, "memory given back")
        for client in slow:
            assert len(client.rest()) < size
