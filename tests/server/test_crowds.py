"""Hundreds of slow clients, and responses larger than memory: no thread is held, and memory stays within its limits."""

import hashlib
import json
import os
from contextlib import ExitStack

import pytest
from harness.server import Server
from server.probes import (
    asking,
    deleted_files,
    digest,
    eventually,
    pattern,
    reading,
    receive_queues,
    request,
    resident,
    run_at_once,
    taken,
)

MEGABYTES = 1_000_000
SHARED = 2 * MEGABYTES
THREADS = 3


def all_threads_are_free(server, name):
    run_at_once(server, name, THREADS)


@pytest.mark.parametrize("target", ["/shared", "/file?size=2000000"])
def test_a_crowd_of_slow_readers_holds_no_thread(target):
    # One piece of memory that all of them share, within a limit of four.
    expected = digest(pattern(SHARED))
    with Server("srv_crowd:app", threads=THREADS, client_memory="8MiB") as server, ExitStack() as stack:
        # So that what a first response sets up is there.
        with asking(server, target) as client:
            assert digest(client.response().body) == expected
        all_threads_are_free(server, "before")
        before, threads = resident(server), server.threads()
        crowd = [stack.enter_context(reading(server, target)) for _ in range(200)]
        heads = [client.head() for client in crowd]
        all_threads_are_free(server, "while")
        assert len(server.threads()) <= len(threads), (threads, server.threads())
        assert resident(server) - before < 20 * MEGABYTES
        for client, head in zip(crowd, heads, strict=True):
            assert taken(client, head) == expected
            assert client.ask(request("/")).body == b"pong", "the connection is kept"


OWN = 4 * MEGABYTES
OWNERS = 50


def test_producers_of_responses_that_do_not_fit_wait_and_none_is_lost():
    expected = digest(pattern(OWN))
    target = f"/own?size={OWN}"
    with Server("srv_crowd:app", threads=THREADS, client_memory="32MiB") as server:
        for number in range(3):
            with ExitStack() as stack:
                crowd = [stack.enter_context(reading(server, target)) for _ in range(OWNERS)]
                # The first is in the send queue; the last is stuck before the application or in it. All vanish.
                crowd[0].head()
            # Room that was lost would hold up the next ones.
            all_threads_are_free(server, f"again-{number}")
        with asking(server, target) as client:
            assert digest(client.response().body) == expected
        before = most = resident(server)
        with ExitStack() as stack:
            for client in [stack.enter_context(reading(server, target)) for _ in range(OWNERS)]:
                # Whoever is still in the application, or in the queue before it, has its turn as others are done.
                head = client.head()
                most = max(most, resident(server))
                assert taken(client, head) == expected
                most = max(most, resident(server))
        # The limit, for each thread a response and what the application needs for making it, and what the allocator
        # keeps; not the 200 MB of the crowd.
        assert most - before < (17 + 3 * THREADS * 4 + 30) * MEGABYTES
        all_threads_are_free(server, "after")


def test_memory_goes_back_while_the_application_is_idle():
    target, owners = f"/own?size={OWN}", 30
    expected = digest(pattern(OWN))
    with Server("srv_crowd:app", threads=THREADS, client_memory="2GiB") as server, ExitStack() as stack:
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


# Clients, the size of each body, how much is sent before all wait, the limit; how many are in files then, and the
# megabytes that the server has in memory.
UPLOADS = {
    "half of each in memory": (100, MEGABYTES, 500_000, "", None, 115),
    "half of each in files": (100, MEGABYTES, 500_000, "16MiB", None, 23),
    "small ones that are too many": (60, 500_000, 499_999, "8MiB", range(50, 61), 15),
    "small ones in memory": (60, 500_000, 499_999, "512MiB", range(1), 60),
    "large ones in memory": (6, 8 * MEGABYTES, 7_500_000, "", range(1), 60),
    # Those that were begun in memory are moved to files.
    "large ones that are too many": (6, 8 * MEGABYTES, 7_500_000, "64MiB", range(2, 7), 40),
    "large ones": (6, 8 * MEGABYTES, 7_500_000, "24MiB", range(6, 7), 40),
}


@pytest.mark.parametrize("clients, size, first, limit, in_files, megabytes", UPLOADS.values(), ids=UPLOADS)
def test_a_crowd_of_slow_uploads_holds_no_thread_and_memory_within_the_limit(
    clients, size, first, limit, in_files, megabytes
):
    options = {"client_memory": limit} if limit else {}
    with Server("srv_crowd:app", threads=THREADS, **options) as server, ExitStack() as stack:
        all_threads_are_free(server, "before")
        before, files = resident(server), deleted_files(server)
        crowd = [stack.enter_context(server.client(30)) for _ in range(clients)]
        bodies = [pattern(size, number) for number in range(clients)]
        for client in crowd:
            client.send(b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % size)
        for start in range(0, first, 500_000):
            for number, (client, body) in enumerate(zip(crowd, bodies, strict=True)):
                client.send(body[start : min(start + 500_000, first)])
                # A disk that is slower than all of them together would have the oldest refused.
                if number % 8 == 7 or client is crowd[-1]:
                    eventually(lambda: not any(receive_queues(server)), "the first part of every body")
        all_threads_are_free(server, "while")
        assert in_files is None or deleted_files(server) - files in in_files
        # What waits for the disk, and segments that are kept for some seconds, are in memory for a while.
        eventually(lambda: resident(server) - before < megabytes * MEGABYTES, "memory given back")
        for client, body in zip(crowd, bodies, strict=True):
            client.send(body[first:])
        for client, body in zip(crowd, bodies, strict=True):
            got = json.loads(client.response().body)
            assert got == {"length": size, "hash": hashlib.sha256(body).hexdigest()}
        eventually(lambda: deleted_files(server) == files, "the files are gone")


ENDLESS = 300 * MEGABYTES


@pytest.mark.parametrize("shape", ["file", "generator", "small blocks"])
def test_a_response_larger_than_memory_leaves_memory_flat(shape, tmp_path):
    size = ENDLESS if shape != "small blocks" else ENDLESS // 6
    expected = hashlib.sha256()
    if shape == "file":
        path = tmp_path / "endless"
        with path.open("wb+") as file:
            # Sparse, but for marks that tell its parts from each other.
            for start in range(0, size, 1 << 20):
                os.pwrite(file.fileno(), start.to_bytes(8, "big"), start)
            os.truncate(path, size)
            while piece := file.read(1 << 20):
                expected.update(piece)
        target = f"/at?path={path}"
    else:
        target = f"/generator?size={size}&block={65_536 if shape == 'generator' else 128}"
        for start in range(0, size, 1 << 20):
            expected.update(pattern(min(1 << 20, size - start), start))
    with Server("srv_crowd:app", threads=THREADS) as server:
        with asking(server, "/generator?size=5000000&block=1000") as client:
            client.response()
        before = most = resident(server)
        got, have = hashlib.sha256(), 0
        with asking(server, target) as client:
            head = client.head()
            chunked = "transfer-encoding" in head
            while piece := client.chunk(head) if chunked else client.read(min(size - have, 1 << 20)):
                head.body = b""
                have += len(piece)
                got.update(piece)
                most = max(most, resident(server))
        assert (have, got.digest()) == (size, expected.digest())
        # A response waits in its queue of 4 MiB and nowhere else.
        assert most - before < 12 * MEGABYTES
