"""SIGTERM and SIGINT: what is in flight or queued is answered, what is idle ends, nothing new begins."""

import os
import signal
import socket
import threading
from contextlib import ExitStack

import pytest
from harness.server import Server
from server.probes import asking, await_waiting, digest, eventually, pattern, request, taken, told

STOPS = [signal.SIGTERM, signal.SIGINT]


def is_refused(server):
    try:
        server.address.connect().close()
    except OSError:
        return True
    return False


def begin_to_stop(server, number):
    """Sends the signal, and returns once the server acts on it: idle connections end."""
    with asking(server, "/") as idle:
        assert idle.response().status == 200
        server.send_signal(number)
        idle.at_end(clean=True)


@pytest.mark.parametrize("number", STOPS)
def test_in_flight_requests_finish_and_everything_else_ends(number, tmp_path):
    gate = tmp_path / "gate"
    with Server("srv_shapes:app") as server, ExitStack() as stack:
        idle = stack.enter_context(asking(server, "/"))
        assert idle.response().body == b"pong"
        fresh = stack.enter_context(server.client())
        waits = stack.enter_context(asking(server, f"/wait?gate={gate}&key=a"))
        streams = stack.enter_context(asking(server, f"/pause?gate={gate}&size=5&then=7"))
        stream = streams.head()
        assert streams.chunk(stream) == pattern(5)
        slow = stack.enter_context(asking(server, "/list?size=20000000"))
        slow_head = slow.head()
        # Both wait at the same gate, a file: the server takes no request any more that could open another.
        eventually(lambda: told(server, f"/seen?gate={gate}") == 2, "both in flight")
        server.send_signal(number)
        idle.at_end(clean=True)
        fresh.at_end(clean=True)
        eventually(lambda: is_refused(server), "new connections refused")
        assert server.process.poll() is None
        gate.touch()
        answer = waits.response()
        assert (answer.status, answer.connection) == (200, {"close"})
        waits.at_end(clean=True)
        # Its head had left before the signal.
        assert streams.chunk(stream) == pattern(7, 5)
        assert streams.chunk(stream) == b""
        streams.at_end(clean=True)
        assert taken(slow, slow_head) == digest(pattern(20_000_000))
        slow.at_end(clean=True)
        assert server.wait() == 0
        assert signal.Signals(number).name in server.log


@pytest.mark.parametrize("number", STOPS)
def test_queued_requests_are_answered(number, tmp_path):
    gate = tmp_path / "gate"
    with Server("srv_shapes:app", threads=1) as server, ExitStack() as stack:
        idle = stack.enter_context(asking(server, "/"))
        assert idle.response().status == 200
        running = stack.enter_context(asking(server, f"/wait?gate={gate}&key=0"))
        queued = [stack.enter_context(server.client(30)) for _ in range(8)]
        for client in queued:
            # The server has read this request once it refuses the next connection's.
            client.send(request("/?key=queued"))
        with server.client() as bad:
            bad.send(b"\0\r\n\r\n")
            assert bad.response().status == 400
        server.send_signal(number)
        idle.at_end(clean=True)
        gate.touch()
        assert running.response().status == 200
        for client in queued:
            answer = client.response()
            assert (answer.status, answer.body, answer.connection) == (200, b"pong", {"close"})
            client.at_end(clean=True)
        assert server.wait() == 0


def test_a_body_on_its_way_is_received_and_answered():
    with Server("srv_shapes:app") as server, server.client() as client, server.client() as head:
        client.send(b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n" + bytes(1000))
        head.send(b"GET / HTTP/1.1\r\n")
        told(server, "/process")
        begin_to_stop(server, signal.SIGTERM)
        head.send(b"Host: t\r\n\r\n")
        assert head.response().body == b"pong"
        head.at_end(clean=True)
        client.send(bytes(999_000))
        answer = client.response()
        assert answer.status == 200
        assert answer.connection == {"close"}
        client.at_end(clean=True)
        assert server.wait() == 0


def test_a_pipelined_request_behind_the_last_answer_is_not_begun(tmp_path):
    gate = tmp_path / "gate"
    with Server("srv_shapes:app") as server, server.client() as client:
        client.send(request(f"/wait?gate={gate}") + request("/?behind"))
        await_waiting(server, str(gate), 1)
        begin_to_stop(server, signal.SIGTERM)
        gate.touch()
        answer = client.response()
        assert answer.connection == {"close"}
        client.at_end()
        assert server.wait() == 0


@pytest.mark.parametrize("number", STOPS)
def test_a_second_signal_stops_now(number):
    with Server("srv_shapes:app") as server, asking(server, "/wait?gate=/nowhere/never") as client:
        await_waiting(server, "/nowhere/never", 1)
        begin_to_stop(server, number)
        assert server.process.poll() is None
        server.send_signal(number)
        client.at_end()
        server.wait()
        assert "stopping now" in server.log
        assert "1 requests did not finish in time" in server.log


def test_graceful_timeout_cuts_what_hangs_and_says_so():
    with (
        Server("srv_shapes:app", graceful_timeout=0.5) as server,
        asking(server, "/wait?gate=/nowhere/never") as running,
        asking(server, "/generator?size=100000000&block=1000&key=k") as stuck,
        server.client() as half,
    ):
        half.send(b"GET / HTTP/1.1\r\nHost")
        stuck.head()
        await_waiting(server, "/nowhere/never", 1)
        server.send_signal(signal.SIGTERM)
        running.at_end()
        half.at_end()
        stuck.rest()
        server.wait()
        assert "did not finish in time" in server.log


def test_connections_that_wait_to_be_accepted_are_answered_or_refused_but_never_left():
    # More than are accepted in one round, connected and asking when the signal comes.
    with Server("srv_shapes:app") as server, ExitStack() as stack:
        told(server, "/process")
        worker = server.pid
        os.kill(worker, signal.SIGSTOP)
        clients = [stack.enter_context(asking(server, "/")) for _ in range(200)]
        server.send_signal(signal.SIGTERM)
        os.kill(worker, signal.SIGCONT)
        answered = 0
        for client in clients:
            if not client.has_ended():
                assert client.response().body == b"pong"
                answered += 1
        assert server.wait() == 0
        assert answered == 200, "requests that had arrived before the signal were thrown away"


def test_an_embedded_server_that_cuts_connections_leaves_no_descriptor():
    import penstock

    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "4")])
        return [b"pong"]

    def cycle():
        with ExitStack() as clients:
            with penstock.serve_in_thread(app, graceful_timeout=0.1) as url:
                host, _, port = url.removeprefix("http://").partition(":")
                half = request("/", "Content-Length: 5") + b"ab"
                for sent in [b"GET / HTTP/1.1\r\nHo", half, b""]:
                    client = clients.enter_context(socket.create_connection((host, int(port)), 5))
                    client.sendall(sent)
                with socket.create_connection((host, int(port)), 5) as client:
                    client.sendall(request("/"))
                    assert client.recv(100)

    cycle()
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(5):
        cycle()
    eventually(lambda: threading.active_count() <= threads, "the threads have ended")
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, "descriptors closed", 5)
