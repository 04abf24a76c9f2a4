"""Responses that slow clients do not accept are written to files: no thread waits for them, and no byte is lost."""

import contextlib
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.addresses import Address
from harness.server import Server
from server.probes import (
    asking,
    deleted_files,
    digest,
    eventually,
    pattern,
    reading,
    request,
    resident,
    run_at_once,
    taken,
)

MEGABYTES = 1_000_000
SIZE = 4 * MEGABYTES
THREADS = 3
READERS = 12
# Of a response, what is more than 64 KiB waits, or goes to a file.
OPTIONS = {"client_memory": "1MiB", "threads": THREADS}
FORMAT = "delivered {delivery} {ending}"
MODES = [pytest.param([], id="threads"), pytest.param(["--gevent", "--max-greenlets", str(THREADS)], id="gevent")]


def serving(*arguments, **options):
    log = ["--access-log", "-", "--access-log-format", FORMAT]
    return Server("srv_shapes:app", *arguments, *log, **{**OPTIONS, **options})


def spilled(server):
    """Bytes in files of the process that have no name."""
    size = 0
    for entry in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(entry.readlink()).endswith(" (deleted)"):
                size += entry.stat().st_size
    return size


def all_threads_are_free(server, name):
    run_at_once(server, name, THREADS)


@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize("arguments", MODES)
@pytest.mark.parametrize(
    "target",
    [
        f"/list?size={SIZE}&block={SIZE}",
        f"/list?size={SIZE}&block=50000",
        f"/generator?size={SIZE}&block=50000",
        f"/generator?size={SIZE}&block=500",
        f"/generator?size={SIZE}&block=50000&length={SIZE}",
        f"/bytes?size={SIZE}",
    ],
)
def test_slow_readers_of_different_responses_hold_no_thread(arguments, target):
    with serving(*arguments) as server, ExitStack() as stack:
        with asking(server, target) as client:
            assert digest(client.response().body) == digest(pattern(SIZE))
        all_threads_are_free(server, "before")
        before, files = resident(server), deleted_files(server)
        crowd = [stack.enter_context(reading(server, target)) for _ in range(READERS)]
        heads = [client.head() for client in crowd]
        # Every one of them has been made: the next request is not behind them.
        all_threads_are_free(server, "while")
        assert deleted_files(server) - files == READERS
        eventually(lambda: resident(server) - before < READERS * SIZE * 3 // 4, "memory given back")
        for client, head in zip(crowd, heads, strict=True):
            assert taken(client, head) == digest(pattern(SIZE))
            assert client.ask(request("/")).body == b"pong", "the connection is kept"
        eventually(lambda: deleted_files(server) == files, "no file is left")
        assert eventually(lambda: server.log.count("delivered spilled complete") >= READERS, "the log")


def test_with_debug_a_slow_reader_does_not_hold_the_only_thread():
    options = {key: value for key, value in OPTIONS.items() if key != "threads"}
    with Server("srv_shapes:app", "--debug", **options) as server:
        with reading(server, f"/list?size={SIZE}&block={SIZE}") as slow:
            head = slow.head()
            assert server.get("/").body == b"pong"
            assert taken(slow, head) == digest(pattern(SIZE))


@pytest.mark.parametrize("arguments", MODES)
def test_an_endless_response_has_its_share_of_the_files_and_waits(arguments):
    target = f"/generator?size={200 * MEGABYTES}&block=50000"
    with serving(*arguments, response_spill="20MiB") as server, ExitStack() as stack:
        slow = stack.enter_context(reading(server, target))
        head = slow.head()
        eventually(lambda: spilled(server) > 15 << 20, "the share is used")
        # Another one is finished: there is room left for it.
        other = stack.enter_context(reading(server, "/list?size=2000000&block=2000000"))
        other_head = other.head()
        run_at_once(server, "all-but-one", THREADS - 1)
        assert spilled(server) <= 20 << 20
        assert taken(other, other_head) == digest(pattern(2_000_000))
        assert taken(slow, head) == digest(pattern(200 * MEGABYTES))
        assert spilled(server) <= 20 << 20


@pytest.mark.parametrize("arguments", MODES)
def test_without_room_for_files_only_requests_that_find_no_thread_are_refused(arguments):
    target = f"/list?size={SIZE}&block={SIZE}"
    with serving(*arguments, response_spill=0) as server, ExitStack() as stack:
        crowd = [stack.enter_context(reading(server, target)) for _ in range(THREADS - 1)]
        heads = [client.head() for client in crowd]
        # Uploads are not refused for memory that responses hold.
        assert [upload(server) for _ in range(5)] == [200] * 5
        # With one more, they hold every thread, and the queue does not move.
        crowd.append(stack.enter_context(reading(server, target)))
        heads.append(crowd[-1].head())
        with asking(server, "/") as client:
            response = client.response()
            assert (response.status, response["retry-after"]) == (503, "1")
            assert client.ask(request("/")).status == 503
        for client, head in zip(crowd, heads, strict=True):
            assert taken(client, head) == digest(pattern(SIZE))
        with asking(server, "/") as client:
            assert client.response().body == b"pong"


def taken_by_kernel():
    """Bytes that a UNIX socket takes for a client that reads nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        return ours.send(bytes(4 << 20))


def moved(server):
    """Lines about responses that were moved to files."""
    return server.log.count("moved to temporary files in")


def upload(server):
    """The status of an upload of a megabyte by another client, which shall be answered."""
    with server.client() as client:
        return client.ask(b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000)).status


# Its limit has no room for what is encrypted and waits, up to 64 KiB for each of its 300 clients.
@pytest.mark.runs_with("threads")
@pytest.mark.parametrize("arguments", MODES)
def test_a_small_part_of_a_large_block_does_not_hold_the_block(arguments, tmp_path):
    readers, left = 300, 30_000
    size = taken_by_kernel() + left
    address = Address(path=str(tmp_path / "socket"))
    options = {"client_memory": "24MiB"}
    with serving(*arguments, address=address, **options) as server, ExitStack() as stack:
        all_threads_are_free(server, "before")
        before = resident(server)
        crowd = [stack.enter_context(asking(server, f"/bytes?size={size}")) for _ in range(readers)]
        all_threads_are_free(server, "while")
        assert [upload(server) for _ in range(5)] == [200] * 5
        # What is left of them has room in memory; the blocks, 75 MB, have not.
        eventually(lambda: resident(server) - before < 35 * MEGABYTES, "memory given back")
        for client in crowd:
            assert taken(client, client.head()) == digest(pattern(size))


@pytest.mark.parametrize("arguments", MODES)
def test_finished_responses_go_to_files_when_responses_exceed_their_memory(arguments, tmp_path):
    # Too little is left of each for its thread to wait, and too much for a copy. 30 of them have room in memory.
    readers, size = 60, taken_by_kernel() + 55_000
    address = Address(path=str(tmp_path / "socket"))
    options = {"client_memory": "4MiB"}
    with serving(*arguments, address=address, **options) as server, ExitStack() as stack:
        target, files = f"/list?size={size}&block=30000", deleted_files(server)
        crowd = [stack.enter_context(asking(server, target)) for _ in range(readers)]
        # Nobody asks anything meanwhile.
        eventually(lambda: deleted_files(server) > files, "some are moved")
        assert deleted_files(server) < files + readers
        # A greenlet writes the file itself before it ends, for it need not wait with it.
        if not arguments:
            assert server.logged("exceed 2 MiB (half of --client-memory): ") and moved(server) == 1
        for client in crowd:
            assert taken(client, client.head()) == digest(pattern(size))
            assert client.ask(request("/")).body == b"pong"
        eventually(lambda: deleted_files(server) == files, "no file is left")
        assert eventually(lambda: server.log.count(" complete") == 2 * readers, "the log")
        # The application's threads had ended most before they were moved. On a busy machine, a thread may find that the
        # memory is exceeded, and write its response to a file itself.
        assert arguments or server.log.count("delivered spilled complete") < readers // 4


@pytest.mark.parametrize("arguments", MODES)
def test_with_a_full_disk_responses_wait_in_memory_and_arrive(disk, arguments):
    target = f"/list?size={SIZE}&block={SIZE}"
    disk.set("full", True)
    with serving(*arguments, environment=disk.environment) as server, ExitStack() as stack:
        crowd = [stack.enter_context(reading(server, target)) for _ in range(THREADS - 1)]
        heads = [client.head() for client in crowd]
        assert server.logged("cannot store responses to slow clients in")
        assert server.get("/").body == b"pong"
        for client, head in zip(crowd, heads, strict=True):
            assert taken(client, head) == digest(pattern(SIZE))
        assert server.log.count("cannot store") == 1, "said once a minute"


@pytest.mark.parametrize("arguments", MODES)
def test_while_the_disk_stands_still_a_response_is_sent_from_memory(disk, arguments):
    target = f"/list?size={SIZE}&block={SIZE}"
    with serving(*arguments, environment=disk.environment) as server, reading(server, target) as slow:
        disk.set("hold", True)
        head = slow.head()
        eventually(lambda: disk.waiting() == 1, "a write that waits")
        assert server.get("/").body == b"pong"
        assert taken(slow, head) == digest(pattern(SIZE))
        disk.set("hold", False)
        assert slow.ask(request("/")).body == b"pong"


@pytest.mark.parametrize("arguments", MODES)
def test_clients_that_leave_give_back_the_room_of_their_files(arguments):
    target = f"/list?size={SIZE}&block={SIZE}"
    with serving(*arguments, response_spill="26MiB") as server:
        assert server.get("/").body == b"pong"
        files = deleted_files(server)
        for number in range(3):
            with ExitStack() as stack:
                for _ in range(6):
                    stack.enter_context(reading(server, target)).head()
                # Room that was lost would hold up the next ones.
                all_threads_are_free(server, f"again-{number}")
                assert deleted_files(server) - files == 6
            eventually(lambda: deleted_files(server) == files, "no file is left")
