"""Slow clients hold no thread, and clients that disconnect leave no thread, memory or descriptor in use."""

from contextlib import ExitStack

import pytest
from harness.server import Server, shared
from harness.waits import until_it_wakes
from server.probes import (
    asking,
    await_waiting,
    digest,
    eventually,
    is_held,
    open_gate,
    pattern,
    request,
    run_at_once,
    taken,
    told,
)

BIG = 50_000_000
BIG_DIGEST = digest(pattern(BIG))
server = shared(Server, "srv_shapes:app", threads=3)


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
            assert reader.ask(request("/")).body == b"pong"


@pytest.mark.parametrize("block", [1, 100, 20_000, 300_000])
@pytest.mark.parametrize("way", ["close", "reset"])
def test_a_client_that_vanishes_frees_the_thread_and_the_generator_is_closed(server, block, way):
    key = f"gone-{block}-{way}"
    # The gate is never opened: only the vanished client can end this response.
    clients = [asking(server, f"/late?gate={key}&block={block}&key={key}") for _ in range(3)]
    for client in clients:
        client.head()
        assert client.read(1)
        client.abort() if way == "reset" else client.close()
    eventually(lambda: told(server, f"/closed?key={key}") == 3, "three generators closed")
    run_at_once(server, f"after-{key}", 3)


def test_a_client_that_vanishes_while_the_generator_waits_for_room(server):
    key = "room"
    client = asking(server, f"/late?gate={key}&block=60000&key={key}")
    client.head()
    # It produces until the queue is full; the client has read nothing.
    eventually(lambda: until_it_wakes(server.pid) > 0, "that no thread runs")
    client.close()
    eventually(lambda: told(server, f"/closed?key={key}") == 1, "the generator closed")


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
impatient = shared(Server, "srv_shapes:app", threads=3, write_timeout=1)


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
