"""Requests that wait, for their clients or for anything else, delay no other request."""

import json
import os
import re
from contextlib import ExitStack

import pytest
from harness.greenlets import in_requests, on_greenlets, record
from harness.uploads import chunk, head
from server.probes import (
    asking,
    await_waiting,
    digest,
    eventually,
    open_gate,
    pattern,
    reading,
    request,
    resident,
    taken,
    told,
)

MEGABYTE = 1 << 20
SIZE = 64 * MEGABYTE


@pytest.fixture(scope="module")
def server():
    # A line of the hub's watch would be a defect, and no accident of a busy machine.
    with on_greenlets(response_spill=0) as server:
        told(server, "/dump")
        yield server
        assert not re.search(r"the hub was blocked for [1-9]", server.log)


def pongs(client, count):
    for _ in range(count):
        assert client.ask(request("/")).body == b"pong"


@pytest.mark.parametrize("by", ["iteration", "write"])
@pytest.mark.parametrize("block", [MEGABYTE, 100_000, 128])
def test_a_producer_waits_for_its_client_and_nobody_waits_for_it(server, by, block):
    # Fails when the wait for room blocks the hub (no pong), or when a block is taken however full the queue is.
    size = SIZE if block > 128 else SIZE // 4
    key = f"producer-{by}-{block}"
    with server.client() as others, ExitStack() as stack:
        pongs(others, 10)
        before = resident(server)
        slow = stack.enter_context(reading(server, f"/produce?key={key}&by={by}&size={size}&block={block}"))
        answer = slow.head()
        for _ in range(100):
            pongs(others, 3)
            slow.buffer += slow.sock.recv(1000)
        # The queue, the block that waits, and what the kernel has taken.
        assert record(server, key)["made"] * block < 4 * MEGABYTE + block + 6 * MEGABYTE
        assert resident(server) - before < 20 * MEGABYTE
        assert taken(slow, answer) == digest(pattern(size))
    eventually(lambda: record(server, key)["closed"] == 1, "close()")


def test_a_producer_that_never_waits_lets_other_greenlets_run(server):
    # Fails when a response whose client takes everything at once keeps the hub to its end.
    size = SIZE // 4
    with ExitStack() as stack:
        others = stack.enter_context(server.client(30))
        stream = stack.enter_context(asking(server, f"/produce?key=greedy&size={size}&block=128"))
        answer = stream.head()
        others.send(request("/record?key=greedy"))
        got = taken(stream, answer)
        # It was asked at the beginning, and is answered in its turn.
        assert json.loads(others.response().body)["made"] < size // 128
        assert got == digest(pattern(size))


@pytest.mark.parametrize("shape", ["list", "generator", "file", "bytes"])
def test_a_response_that_is_finished_needs_no_greenlet_for_its_slow_client(server, shape):
    # Fails when a greenlet waits for what the I/O thread can send alone.
    with ExitStack() as stack:
        slow = [stack.enter_context(reading(server, f"/{shape}?size=1500000")) for _ in range(30)]
        answers = [client.head() for client in slow]
        eventually(lambda: in_requests(server) == 0, "all greenlets are free")
        for client, answer in zip(slow, answers, strict=True):
            assert taken(client, answer) == digest(pattern(1_500_000))


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_reader_of_a_streamed_body_waits_for_its_client_alone(framing):
    # Fails when wsgi.input.read() blocks the hub, or when arriving bytes wake no reader, or that of another request.
    count, body = 40, os.urandom(50_000)
    with on_greenlets("srv_greenlets:app", "--stream-body") as server, ExitStack() as stack:
        others = stack.enter_context(server.client())
        clients = [stack.enter_context(server.client(30)) for _ in range(count)]
        for number, client in enumerate(clients):
            length = len(body) + number if framing == "length" else None
            client.send(head(target=f"/consume?key={number}", length=length))
        eventually(lambda: in_requests(server) == count, "all of them read")
        pongs(others, 50)
        for start in range(0, len(body), 10_000):
            for client in reversed(clients):
                piece = body[start : start + 10_000]
                client.send(piece if framing == "length" else chunk(piece))
            pongs(others, 5)
        for number, client in enumerate(clients):
            client.send(
                bytes(number) if framing == "length" else (chunk(bytes(number)) if number else b"") + chunk(b"")
            )
        for number, client in enumerate(clients):
            assert json.loads(client.response().body) == len(body) + number
        assert not re.search(r"the hub was blocked for [1-9]", server.log)


def test_500_requests_wait_at_once(server):
    # Fails when anything below the application holds a thread, or a lock over a switch.
    count = 500
    with ExitStack() as stack:
        clients = [stack.enter_context(asking(server, f"/wait?gate=crowd&key={number}")) for number in range(count)]
        await_waiting(server, "crowd", count)
        assert in_requests(server) == count
        open_gate(server, "crowd")
        for number, client in enumerate(clients):
            assert json.loads(client.response().body) == {"opened": True, "key": str(number)}
    eventually(lambda: in_requests(server) == 0, "the greenlets have ended")


def test_pipelined_requests_are_answered_in_order_though_they_sleep(server):
    # The hub thread itself parses the next one on a connection when one ends. Fails when that needs another event.
    targets = ["/", "/sleep?seconds=0.001&key={}", "/list?size={}", "/generator?size={}&block=10"]
    wire, expected = [], []
    for number in range(400):
        target = targets[number % 4].format(number)
        wire.append(request(target))
        body = {0: b"pong", 1: json.dumps({"key": str(number)}).encode()}.get(number % 4, pattern(number))
        expected.append(body)
    with server.client(30) as client:
        client.send(b"".join(wire))
        for body in expected:
            assert client.response().body == body


def test_a_hundred_streams_get_their_blocks_at_once(server):
    # Fails when a block of a stream waits for another block, or for the end of a sleep.
    with ExitStack() as stack:
        streams = [stack.enter_context(asking(server, "/pause?gate=streams&size=5&then=7")) for _ in range(100)]
        answers = [stream.head() for stream in streams]
        for stream, answer in zip(streams, answers, strict=True):
            assert stream.chunk(answer) == pattern(5)
        await_waiting(server, "streams", 100)
        open_gate(server, "streams")
        for stream, answer in zip(streams, answers, strict=True):
            assert stream.chunk(answer) == pattern(7, 5)
            assert stream.chunk(answer) == b""
