"""Hundreds of slow clients, and responses larger than memory: no thread is held, and memory stays within its limits."""

import hashlib
import json
import os
from contextlib import ExitStack

import pytest
from harness.server import Server
from server.probes import (
    asking,
    await_waiting,
    deleted_files,
    digest,
    eventually,
    open_gate,
    pattern,
    reading,
    receive_queues,
    request,
    resident,
    taken,
)

MEGABYTES = 1_000_000
SHARED = 2 * MEGABYTES
THREADS = 3


def all_threads_are_free(server, name):
    """As many requests as there are application threads are in the application at once: the question is the last."""
    with ExitStack() as stack:
        waiting = [stack.enter_context(asking(server, f"/wait?gate={name}")) for _ in range(THREADS - 1)]
        await_waiting(server, name, THREADS - 1)
        assert server.get("/").body == b"pong"
        open_gate(server, name)
        assert [client.response().status for client in waiting] == [200] * len(waiting)


@pytest.mark.parametrize(
    ("target", "readers", "megabytes"),
    [
        # One piece of memory that all of them share, within a limit of four.
        ("/shared", 200, 5),
        ("/file?size=2000000", 200, 5),
        # 100 times what the sockets do not take of 2 MB, within the default limit.
        ("/generator?size=2000000&block=50000", 100, 200),
        ("/generator?size=2000000&block=500", 100, 200),
    ],
)
def test_a_crowd_of_slow_readers_holds_no_thread(target, readers, megabytes):
    limit = {} if megabytes > 5 else {"response_buffer": "4MiB"}
    expected = digest(pattern(SHARED))
    with Server("srv_crowd:app", threads=THREADS, **limit) as server, ExitStack() as stack:
        # So that what a first response sets up is there.
        with asking(server, target) as client:
            assert digest(client.response().body) == expected
        all_threads_are_free(server, "before")
        before, threads = resident(server), server.threads()
        crowd = [stack.enter_context(reading(server, target)) for _ in range(readers)]
        heads = [client.head() for client in crowd]
        all_threads_are_free(server, "while")
        assert len(server.threads()) <= len(threads), (threads, server.threads())
        assert resident(server) - before < (megabytes + 15) * MEGABYTES
        for client, head in zip(crowd, heads, strict=True):
            assert taken(client, head) == expected
            client.send(request("/"))
            assert client.response().body == b"pong", "the connection is kept"


OWN = 4 * MEGABYTES
OWNERS = 50


def test_producers_of_responses_that_do_not_fit_wait_and_none_is_lost():
    expected = digest(pattern(OWN))
    target = f"/own?size={OWN}"
    # Without a limit worth the name, the crowd's bytes are in memory, not in sockets: that is what the limit saves.
    with Server("srv_crowd:app", threads=THREADS, response_buffer="1GiB") as server, ExitStack() as stack:
        before = resident(server)
        crowd = [stack.enter_context(reading(server, target)) for _ in range(OWNERS)]
        for client in crowd:
            client.head()
        all_threads_are_free(server, "roomy")
        assert resident(server) - before > 100 * MEGABYTES
    with Server("srv_crowd:app", threads=THREADS, response_buffer="16MiB") as server, ExitStack() as stack:
        with asking(server, target) as client:
            assert digest(client.response().body) == expected
        before = most = resident(server)
        crowd = [stack.enter_context(reading(server, target)) for _ in range(OWNERS)]
        for client in crowd:
            # Whoever is still in the application, or in the queue before it, has its turn as others are done.
            head = client.head()
            most = max(most, resident(server))
            assert taken(client, head) == expected
            most = max(most, resident(server))
        # The limit, for each thread a response and what the application needs for making it, and what the allocator
        # keeps; not the 200 MB of the crowd.
        assert most - before < (17 + 3 * THREADS * 4 + 30) * MEGABYTES
        all_threads_are_free(server, "after")


def test_a_crowd_whose_clients_vanish_gives_back_the_room_it_had():
    target = f"/own?size={OWN}"
    with Server("srv_crowd:app", threads=THREADS, response_buffer="16MiB") as server:
        for number in range(3):
            with ExitStack() as stack:
                crowd = [stack.enter_context(reading(server, target)) for _ in range(OWNERS)]
                # The first is in the send queue; the last is stuck before the application or in it.
                crowd[0].head()
            # Room that was lost would hold up the next ones.
            all_threads_are_free(server, f"again-{number}")
        with ExitStack() as stack:
            crowd = [stack.enter_context(reading(server, target)) for _ in range(3)]
            for client in crowd:
                client.head()
            all_threads_are_free(server, "at-last")


def test_memory_goes_back_while_the_application_is_idle():
    target, owners = f"/own?size={OWN}", 30
    expected = digest(pattern(OWN))
    with Server("srv_crowd:app", threads=THREADS, response_buffer="1GiB") as server, ExitStack() as stack:
        with asking(server, target) as client:
            assert digest(client.response().body) == expected
        before = resident(server)
        crowd = [stack.enter_context(reading(server, target)) for _ in range(owners)]
        heads = [client.head() for client in crowd]
        all_threads_are_free(server, "finished")
        assert resident(server) - before > 60 * MEGABYTES
        # The last that the application hears; from here on only the I/O side works.
        for client, head in zip(crowd, heads, strict=True):
            assert taken(client, head) == expected
        eventually(lambda: resident(server) - before < 40 * MEGABYTES, "memory given back")


UPLOAD = MEGABYTES
UPLOADERS = 100


def upload_of(number):
    """A body that is no other client's."""
    return pattern(UPLOAD, number)


@pytest.mark.parametrize(
    ("limit", "megabytes"),
    [
        # Half of each in memory.
        ({}, UPLOADERS / 2),
        # In files.
        ({"body_memory": "16KiB"}, 2),
    ],
    ids=["in memory", "in files"],
)
def test_a_crowd_of_slow_uploads_holds_no_thread(limit, megabytes):
    half = UPLOAD // 2
    with Server("srv_crowd:app", threads=THREADS, **limit) as server, ExitStack() as stack:
        all_threads_are_free(server, "before")
        before = resident(server)
        crowd = [stack.enter_context(server.client(30)) for _ in range(UPLOADERS)]
        for number, client in enumerate(crowd):
            client.send(b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % UPLOAD)
            client.send(upload_of(number)[:half])
        # Half of every body has been taken in when none is left in the server's sockets.
        eventually(lambda: not any(receive_queues(server)), "the first halves")
        all_threads_are_free(server, "while")
        # What waits for the disk, and segments that are kept for some seconds, are in memory for a while.
        eventually(lambda: resident(server) - before < (2 * megabytes + 15) * MEGABYTES, "memory given back")
        for number, client in enumerate(crowd):
            client.send(upload_of(number)[half:])
        for number, client in enumerate(crowd):
            got = json.loads(client.response().body)
            assert got == {"length": UPLOAD, "hash": hashlib.sha256(upload_of(number)).hexdigest()}


@pytest.mark.parametrize(
    ("limit", "in_files", "megabytes"), [("2MiB", range(50, 61), 15), ("1GiB", range(1), 60)], ids=["2MiB", "1GiB"]
)
def test_bodies_that_are_too_many_for_memory_go_to_files(limit, in_files, megabytes):
    # Each of them alone is small enough for memory.
    uploaders, size = 60, MEGABYTES // 2
    with Server("srv_crowd:app", threads=THREADS, body_buffer=limit) as server, ExitStack() as stack:
        all_threads_are_free(server, "before")
        before, files = resident(server), deleted_files(server)
        crowd = [stack.enter_context(server.client(30)) for _ in range(uploaders)]
        for number, client in enumerate(crowd):
            client.send(b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % size)
            client.send(pattern(size - 1, number))
        eventually(lambda: not any(receive_queues(server)), "all of every body but its last byte")
        assert deleted_files(server) - files in in_files
        eventually(lambda: resident(server) - before < megabytes * MEGABYTES, "memory given back")
        for number, client in enumerate(crowd):
            client.send(pattern(1, number + size - 1))
        for number, client in enumerate(crowd):
            got = json.loads(client.response().body)
            assert got == {"length": size, "hash": hashlib.sha256(pattern(size, number)).hexdigest()}
        eventually(lambda: deleted_files(server) == files, "the files are gone")


@pytest.mark.parametrize(
    ("limit", "in_files", "megabytes"),
    [
        ({}, range(1), 60),
        # Bodies that were begun in memory are moved to files.
        ({"body_buffer": "16MiB"}, range(2, 7), 40),
        ({"body_memory": "3MiB"}, range(6, 7), 40),
    ],
    ids=["in memory", "too many", "too large"],
)
def test_large_bodies_at_once_reach_the_application_whole(limit, in_files, megabytes):
    uploaders, size, part = 6, 8 * MEGABYTES, 500_000
    with Server("srv_crowd:app", threads=THREADS, **limit) as server, ExitStack() as stack:
        all_threads_are_free(server, "before")
        before, files = resident(server), deleted_files(server)
        crowd = [stack.enter_context(server.client(30)) for _ in range(uploaders)]
        bodies = [pattern(size, number) for number in range(uploaders)]
        for client in crowd:
            client.send(b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % size)
        for start in range(0, size - part, part):
            for client, body in zip(crowd, bodies, strict=True):
                client.send(body[start : start + part])
        eventually(lambda: not any(receive_queues(server)), "all of every body but its last part")
        assert deleted_files(server) - files in in_files
        eventually(lambda: resident(server) - before < megabytes * MEGABYTES, "memory given back")
        for client, body in zip(crowd, bodies, strict=True):
            client.send(body[-part:])
            got = json.loads(client.response().body)
            assert got == {"length": size, "hash": hashlib.sha256(body).hexdigest()}
        eventually(lambda: deleted_files(server) == files, "the files are gone")


ENDLESS = 300 * MEGABYTES


@pytest.mark.parametrize("shape", ["file", "generator", "small blocks"])
def test_a_response_larger_than_memory_leaves_memory_flat(shape, tmp_path):
    size = ENDLESS if shape != "small blocks" else ENDLESS // 6
    if shape == "file":
        path = tmp_path / "endless"
        with path.open("wb") as file:
            # Sparse, but for marks that tell its parts from each other.
            for start in range(0, size, 1 << 20):
                os.pwrite(file.fileno(), start.to_bytes(8, "big"), start)
            os.truncate(path, size)
        target = f"/at?path={path}"
        with path.open("rb") as file:
            expected = f"{size} bytes {hashlib.file_digest(file, 'sha256').hexdigest()}"
    else:
        target = f"/generator?size={size}&block={65_536 if shape == 'generator' else 128}"
        expected = f"{size} bytes {digest_of_pattern(size)}"
    with Server("srv_crowd:app", threads=THREADS) as server:
        with asking(server, "/generator?size=5000000&block=1000") as client:
            client.response()
        before = resident(server)
        most = before
        got, have = hashlib.sha256(), 0
        with asking(server, target) as client:
            head = client.head()
            chunked = "transfer-encoding" in head
            while piece := client.chunk(head) if chunked else client.read(min(size - have, 1 << 20)):
                head.body = b""
                have += len(piece)
                got.update(piece)
                most = max(most, resident(server))
        assert f"{have} bytes {got.hexdigest()}" == expected
        # A response waits in its queue of 4 MiB and nowhere else.
        assert most - before < 12 * MEGABYTES


def digest_of_pattern(size):
    """The hash of so many bytes of the pattern, made in parts."""
    got = hashlib.sha256()
    for start in range(0, size, 1 << 20):
        got.update(pattern(min(1 << 20, size - start), start))
    return got.hexdigest()
