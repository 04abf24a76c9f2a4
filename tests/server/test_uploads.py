"""`--stream-body` in whole servers: memory, signals, `--debug`, and what is freed afterwards."""

import json
import re
import signal
from contextlib import ExitStack

import pytest
from harness.addresses import Address
from harness.server import Server
from harness.uploads import Play, chunk, head, streaming
from server.probes import (
    PATTERN,
    asking,
    await_waiting,
    descriptors,
    digest,
    eventually,
    fill,
    open_gate,
    pattern,
    peak,
    receive_queues,
    resident,
    run_at_once,
    told,
)

SIZE = 300 * len(PATTERN)


@pytest.fixture(scope="module", params=["tcp", "unix"])
def server(request, tmp_path_factory):
    address = Address(path=str(tmp_path_factory.mktemp("socket") / "s")) if request.param == "unix" else None
    with Server("stream_app:app", "--stream-body", threads=40, address=address) as server:
        yield server


def expecting(server, target, *fields, length=None):
    """An upload whose application waits for the body: that is what 100 Continue says."""
    client = server.client(30)
    client.send(head("Expect: 100-continue", *fields, target=target, length=length))
    assert client.head().status == 100
    return client


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("framing", ["length", "chunks", "one-chunk"])
def test_an_upload_of_any_size_needs_little_memory(server, framing):
    def upload(pieces):
        with server.client(30) as client:
            client.send(head(target="/sum", length=pieces * len(PATTERN) if framing == "length" else None))
            if framing == "one-chunk":
                client.send(b"%x\r\n" % (pieces * len(PATTERN)))
            for _ in range(pieces):
                client.send(chunk(PATTERN) if framing == "chunks" else PATTERN)
            client.send({"length": b"", "chunks": b"0\r\n\r\n", "one-chunk": b"\r\n0\r\n\r\n"}[framing])
            return json.loads(client.response().body)

    upload(2)
    before = peak(server)
    assert upload(300) == digest(PATTERN * 300)
    assert peak(server) - before < 8 << 20


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("clients", [1, 30])
def test_what_the_application_does_not_read_is_not_read_from_the_socket(server, clients):
    gate = f"unread-{clients}"
    # Their threads exist before the memory is looked at.
    run_at_once(server, f"threads-{gate}", clients + 2)
    with ExitStack() as stack:
        before = peak(server)
        uploads = [stack.enter_context(server.client(30)) for _ in range(clients)]
        for client in uploads:
            client.send(head(target=f"/sum?gate={gate}", length=SIZE))
        await_waiting(server, gate, clients)
        counts = [fill(server, client, lambda sent: pattern(65536, sent), SIZE // 2) for client in uploads]
        assert peak(server) - before < (4 << 20) + clients * (512 << 10)
        open_gate(server, gate)
        # The first is finished and whole; the others go away in the middle.
        client, count = uploads[0], counts[0]
        client.sock.settimeout(30)
        while count < SIZE:
            count += client.sock.send(pattern(min(65536, SIZE - count), count))
        assert json.loads(client.response().body) == digest(PATTERN * (SIZE // len(PATTERN)))


# Small chunks may cost so much more than one large chunk; they cost up to twice as much.
GENEROUS = 10


def cost(server, by, *pieces):
    """Processor seconds of the server for a chunked body that is read `by` bytes a read; the least of three times."""

    def once():
        with server.client(60) as client:
            client.send(head(target=f"/cost?by={by}"))
            for piece in pieces:
                client.send(piece)
            return json.loads(client.ask(b"0\r\n\r\n").body)

    sizes, seconds = zip(*[once() for _ in range(3)], strict=True)
    assert len(set(sizes)) == 1
    return sizes[0], min(seconds)


# In proportion to what has come already, each of the first chunks would cost as much as a million bytes; in proportion
# to the room in a buffer, each of the others as much as a buffer.
@pytest.mark.parametrize(
    ("by", "before", "piece", "count"),
    [(-1, [chunk(PATTERN)] * 64, b"x", 8000), (8192, [], bytes(100), 200_000)],
    ids=["however much has been read before", "whatever is asked for at once"],
)
def test_chunks_cost_the_same(server, by, before, piece, count):
    size, whole = cost(server, by, *before, chunk(piece * count))
    got, seconds = cost(server, by, *before, chunk(piece) * count)
    assert got == size
    assert seconds < GENEROUS * whole


def test_little_of_the_bodies_that_wait_for_a_thread_is_in_memory(tmp_path):
    clients, size = 500, 60_000
    gate = tmp_path / "gate"
    with Server("stream_app:app", "--stream-body", threads=1) as server, ExitStack() as stack:
        running = stack.enter_context(asking(server, f"/pause?gate={gate}&size=5&then=7"))
        response = running.head()
        before = resident(server)
        waiting = [stack.enter_context(server.client(30)) for _ in range(clients)]
        for number, client in enumerate(waiting):
            client.send(head(target="/sum", length=size) + pattern(size, number))
        # Of each, the server has read its first part.
        eventually(
            lambda: len(queues := receive_queues(server)) > clients and max(queues) < size - 10_000, "all the heads"
        )
        assert resident(server) - before < clients * (24 << 10) + (8 << 20)
        gate.touch()
        assert running.body_of(response).body == pattern(12)
        for number, client in enumerate(waiting):
            assert json.loads(client.response().body) == digest(pattern(size, number))


def test_vanished_uploads_leave_no_descriptor_and_no_thread(server):
    told(server, "/process")
    before = descriptors(server)
    for number in range(60):
        with server.client() as client:
            client.send(head(target="/raise", length=100 if number % 2 else None) + b"5\r\nhello")
            if number % 3 == 0:
                client.finish_sending()
                assert client.response().status == 400
    eventually(lambda: descriptors(server) <= before, "descriptors closed")
    run_at_once(server, "after-vanished", 40)
    assert "Traceback" not in server.log


def test_every_streamed_upload_is_logged_once(tmp_path):
    log = tmp_path / "log"
    logging = {"access_log": log, "access_log_format": "{target} {status}"}
    sent = {
        "/raise?good 200": head(target="/raise?good", length=5) + b"hello",
        "/raise?half 400": head(target="/raise?half"),
        "/raise?bad 400": head(target="/raise?bad") + b"nonsense\r\n",
        "/raise?large 413": head(target="/raise?large") + b"fff\r\n",
        "/nothing-read 200": head(target="/nothing-read", length=5),
    }
    with Server("stream_app:app", "--stream-body", max_body=50, **logging) as server:
        for line, data in sent.items():
            with server.client() as client:
                client.send(data)
                if "half" in line:
                    client.finish_sending()
                assert client.response().status == int(line[-3:])
        expecting(server, "/raise?gone", length=5).close()
        eventually(lambda: log.exists() and len(log.read_text().splitlines()) >= 6, "six lines")
    lines = log.read_text().splitlines()
    assert sorted(line for line in lines if "gone" not in line) == sorted(sent)
    assert [line for line in lines if line not in sent] == [
        line for line in lines if re.match(r"/raise\?gone \d+", line)
    ]
    assert len(lines) == 6
    assert "Traceback" not in server.log


# Debug: everything on one thread


@pytest.fixture
def debugging():
    with Server("stream_app:app", "--stream-body", "--debug") as server:
        yield server


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_one_thread_reads_an_upload_that_comes_bit_by_bit(debugging, framing):
    # More than the sockets hold, and then in small pieces.
    pieces = 20
    size = pieces * len(PATTERN) + 100
    with expecting(debugging, "/sum", length=size if framing == "length" else None) as client:
        for piece in [PATTERN] * pieces + [b"x"] * 100:
            client.send(piece if framing == "length" else chunk(piece))
        client.send(b"" if framing == "length" else chunk(b""))
        assert json.loads(client.response().body) == digest(PATTERN * pieces + b"x" * 100)
    assert debugging.get("/").body == b"pong"


def test_one_thread_lets_go_of_an_upload_that_breaks_off_and_obeys_ctrl_c(debugging):
    expecting(debugging, "/raise", length=100).close()
    assert debugging.get("/").body == b"pong"
    with expecting(debugging, "/raise") as client:
        assert client.ask(b"nonsense\r\n").status == 400
    assert debugging.get("/").body == b"pong"
    assert "Traceback" not in debugging.log
    with expecting(debugging, "/sum", length=100):
        debugging.send_signal(signal.SIGINT)
        assert debugging.logged("SIGINT: finishing the requests in flight")
        debugging.send_signal(signal.SIGTERM)
        assert debugging.wait() == 0


# Stopping


@pytest.mark.parametrize("arguments", [("--threads", "1"), ("--threads", "8"), ("--debug",)], ids=" ".join)
def test_an_upload_in_flight_may_finish_after_the_signal(arguments):
    with Server("stream_app:app", "--stream-body", *arguments) as server, asking(server, "/") as idle:
        assert idle.response().status == 200
        with expecting(server, "/sum", length=10) as client:
            client.send(b"hello")
            server.send_signal(signal.SIGTERM)
            if "--debug" not in arguments:
                idle.at_end(clean=True)
                assert server.process.poll() is None
            response = client.ask(b"world")
            assert json.loads(response.body) == digest(b"helloworld")
            assert response.connection == {"close"}
            client.at_end(clean=True)
        assert server.wait() == 0


def test_a_rest_that_nobody_waits_for_does_not_hold_a_stop_up():
    # The server may take longer for requests than this test waits for it.
    with (
        Server("stream_app:app", "--stream-body", graceful_timeout=60, body_timeout=60) as server,
        server.client() as client,
    ):
        assert client.ask(head(length=100) + b"hello").connection == set()
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        client.at_end()


@pytest.mark.parametrize("mode", ["--no-debug", "--debug"])
def test_an_upload_that_hangs_is_cut_at_the_end_of_the_graceful_time(mode):
    with (
        Server("stream_app:app", "--stream-body", mode, graceful_timeout=0.3) as server,
        expecting(server, "/sum", length=10) as client,
    ):
        server.send_signal(signal.SIGTERM)
        client.rest()
        assert server.wait() == 0


def test_the_end_of_the_graceful_time_releases_a_thread_that_reads():
    play = Play()
    with streaming(play, graceful_timeout=0.2) as server, server.client() as client:
        client.send(head(length=10) + b"hello")
        request = play.begun()
        assert request.read(5) == b"hello"
        future = request.propagate(lambda stream: stream.read())
    # The server was stopped above; the client did not go before it.
    assert isinstance(future.exception(10), OSError | ValueError)
