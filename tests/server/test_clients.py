"""Slow clients hold no thread, and clients that disconnect leave no thread, memory or descriptor in use."""

import hashlib
import socket
import struct
from contextlib import ExitStack

import pytest
from harness.server import Server
from harness.waits import until_it_wakes
from server.probes import (
    PATTERN,
    asking,
    await_waiting,
    digest,
    eventually,
    is_held,
    open_gate,
    pattern,
    request,
    resident,
    taken,
    told,
)

BIG = 50_000_000
BIG_DIGEST = digest(pattern(BIG))


@pytest.fixture(scope="module")
def server():
    with Server("srv_shapes:app", threads=3) as server:
        yield server


@pytest.mark.parametrize("shape", ["list", "bytes", "generator", "file", "file?wrapped=1", "generator?block=100"])
def test_a_slow_reader_gets_every_byte_and_holds_nobody_up(server, shape):
    if "block=100" in shape:
        # So many blocks take their time; fewer bytes than the others, still more than sockets hold.
        size, expected = BIG // 4, digest(pattern(BIG // 4))
    else:
        size, expected = BIG, BIG_DIGEST
    target = f"/{shape}{'&' if '?' in shape else '?'}size={size}"
    with ExitStack() as stack:
        # As many as there are application threads; a generator holds its thread only while it has blocks to give.
        readers = [stack.enter_context(asking(server, target)) for _ in range(1 if "generator" in shape else 3)]
        heads = [reader.head() for reader in readers]
        for _ in range(20):
            assert server.get("/").body == b"pong"
        for reader, head in zip(readers, heads, strict=True):
            assert taken(reader, head) == expected
            reader.send(request("/"))
            assert reader.response().body == b"pong"


@pytest.mark.parametrize("block", [1, 100, 20_000, 300_000])
@pytest.mark.parametrize("way", ["close", "reset"])
def test_a_client_that_vanishes_frees_the_thread_and_the_generator_is_closed(server, block, way):
    key = f"gone-{block}-{way}"
    # The gate is never opened: only the vanished client can end this response.
    clients = [asking(server, f"/late?gate={key}&block={block}&key={key}") for _ in range(3)]
    for client in clients:
        client.head()
        assert client.read(1)
        if way == "reset":
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    eventually(lambda: told(server, f"/closed?key={key}") == 3, "three generators closed")
    # All threads are free again: as many requests as there are threads run at once.
    with ExitStack() as stack:
        waiting = [stack.enter_context(asking(server, f"/wait?gate=after-{key}")) for _ in range(2)]
        await_waiting(server, f"after-{key}", 2)
        open_gate(server, f"after-{key}")
        assert [client.response().status for client in waiting] == [200, 200]


def test_a_client_that_vanishes_while_the_generator_waits_for_room(server):
    key = "room"
    client = asking(server, f"/late?gate={key}&block=60000&key={key}")
    client.head()
    # It produces until the queue is full; the client has read nothing.
    eventually(lambda: until_it_wakes(server.pid) > 0, "that no thread runs")
    client.close()
    eventually(lambda: told(server, f"/closed?key={key}") == 1, "the generator closed")


def test_a_generator_of_any_length_for_a_slow_reader_needs_little_memory():
    size = 200 * len(PATTERN)
    with Server("srv_shapes:app") as server:
        with asking(server, "/generator?size=1000000&block=1000") as client:
            client.response()
        before = resident(server)
        most = before
        got = hashlib.sha256()
        with asking(server, f"/generator?size={size}&block=50000&length={size}") as client:
            client.head()
            taken = 0
            while taken < size:
                piece = client.read(min(1 << 20, size - taken))
                assert piece
                got.update(piece)
                taken += len(piece)
                most = max(most, resident(server))
        assert most - before < 64 << 20
        assert got.hexdigest() == hashlib.sha256(PATTERN * (size // len(PATTERN))).hexdigest()


def test_the_next_request_of_a_connection_does_not_wait_for_close(server):
    # close() waits until the request behind it in the same segment has been answered, as code after the response may.
    with server.client(10.0) as client:
        client.send(
            request("/wait?gate=prelude")
            + request("/generator?size=5&closing=behind&key=behind")
            + request("/open?gate=behind")
        )
        await_waiting(server, "prelude", 1)
        open_gate(server, "prelude")
        assert client.response().status == 200
        assert client.response().body == pattern(5)
        assert client.response().body == b'"open"', "the third request waited for close() of the second"
    eventually(lambda: told(server, "/closed?key=behind") == 1, "close()")


# --write-timeout counts from the last byte that the client took, and only while something waits for it.


@pytest.fixture(scope="module")
def impatient():
    with Server("srv_shapes:app", threads=3, write_timeout=1) as impatient:
        yield impatient


def test_a_client_that_takes_nothing_is_given_up(impatient):
    with asking(impatient, "/generator?size=100000000&block=100000&key=stuck") as client:
        client.head()
        eventually(lambda: told(impatient, "/closed?key=stuck") == 1, "the generator closed")


def test_a_client_is_given_up_also_when_nothing_else_happens(impatient, tmp_path):
    # The thread that finds the client slow is not the one that polls, which has no other reason to wake.
    gate = str(tmp_path / "gate")
    with asking(impatient, f"/pause?size=10&then=50000000&gate={gate}&key={gate}") as client:
        head = client.head()
        client.chunk(head)
        (tmp_path / "gate").touch()
        assert is_held(client)
        # The client keeps the connection open and accepts nothing, and there are no other requests.
        eventually(lambda: not is_held(client), "the connection given up")
