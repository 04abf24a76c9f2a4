"""The process that holds connections: it outlives workers and masters, ends cleanly, and has limits."""

import contextlib
import errno
import json
import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.held import (
    Numbered,
    Publisher,
    Stream,
    figures,
    holder_address,
    holder_process,
    item,
    links,
    poll,
    publish,
    query,
    spare_descriptors,
)
from harness.operated import operating
from harness.server import APPS, Server
from harness.settings import server_settings
from harness.wire import Client
from server.probes import Narrow, eventually, ready, told

from tailrace.errors import ConfigError
from tailrace.system import holding
from tailrace.worker import holder

MEGABYTE = 1 << 20


@contextlib.contextmanager
def operated(directory, *arguments, **more):
    """A server of two workers, whose application is that of the other tests; and its address for publications."""
    publishes = free_address()
    command = ("srv_held:application", "--workers", "2", "--publish-bind", publishes.bind, *arguments)
    with operating(directory, *command, environment={"PYTHONPATH": str(APPS)}, **more) as server:
        yield server, publishes


def publisher_at(address):
    """Publishes numbers as events, each by a request of its own."""
    return Publisher(lambda number: publish(address, item("n", f"id: {number}\ndata: {number}\n\n", id=str(number))))


@contextlib.contextmanager
def complete(server, publisher, readers=3):
    """Clients that must be sent every number, in one stream that never ends."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Numbered(server.address, "/hold/n")) for _ in range(readers)]
        stack.enter_context(publisher)
        publisher.goes_on()
        yield clients
        publisher.goes_on()
        count = publisher.stop()
        for client in clients:
            client.has(count)


@pytest.mark.parametrize("arguments", [(), ("--preload",), ("--gevent",)], ids=" ".join)
def test_streams_survive_reloads(tmp_path, arguments):
    with operated(tmp_path, *arguments) as (server, publishes):
        with complete(server, publisher := publisher_at(publishes)):
            for turn in range(1, 4):
                server.tell(signal.SIGHUP)
                server.replaced(turn)
                publisher.goes_on()
        assert server.log.count("holds connections") == 1
        assert server.stop() == 0


def test_streams_survive_new_masters(tmp_path):
    with operated(tmp_path) as (server, publishes):
        with complete(server, publisher := publisher_at(publishes)) as clients:
            masters, holders = [server.master], [holder_process(server.master)]
            for _ in range(3):
                server.tell(signal.SIGUSR2)
                server.logged(f"taken over from process {masters[-1]}")
                server.until(lambda: masters[-1] not in server.processes(), "the end of the old master")
                publisher.goes_on()
                masters.append(server.master)
                holders.append(holder_process(server.master))
            assert server.log.count(f"{len(clients)} held connections taken over") == 3
            assert len(set(masters)) == len(set(holders)) == 4 and None not in holders
            # What was published before is still there for clients that come back.
            with Stream(server.address, "/hold/n", "Last-Event-ID: 0") as late:
                assert late.data(20) == [str(number) for number in range(1, 21)]
        assert server.stop() == 0


def test_a_held_response_survives_a_new_master(tmp_path):
    with operated(tmp_path) as (server, publishes):
        polled = [poll(server.address, "/poll/a?timeout=600"), poll(server.address, "/poll/a?timeout=600")]
        fields = [("Grip-Hold", "response"), ("Grip-Channel", "b"), ("Grip-Timeout", "5")]
        fields += [("Content-Type", "text/plain"), ("body", "nothing new")]
        timed = poll(server.address, query(fields))
        server.until(lambda: figures(server.master)["connections"] == 3, "held responses")
        before = server.master
        server.tell(signal.SIGUSR2)
        server.until(lambda: before not in server.processes(), "the end of the old master")
        publish(publishes, item("a", formats={"http-response": {"body": "published"}}))
        for client in polled:
            assert client.response().body == b"published"
            client.close()
        # Nothing was published there: the new process has what the application returned, and the time.
        response = timed.response()
        assert (response.status, response["content-type"], response.body) == (200, "text/plain", b"nothing new")
        timed.close()


def test_a_stream_survives_its_worker(tmp_path):
    with operated(tmp_path) as (server, publishes):

        def publish_by_one(number):
            """By a worker that is not killed: a request that is cut off may have been done."""
            body = json.dumps({"items": [item("n", f"data: {number}\n\n")]}).encode()
            asked = b"POST /publish/ HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            assert connection.ask(asked).status == 200

        with Client(publishes) as connection:
            publish_by_one("first")
            worker = owner(connection, server)
            with complete(server, publisher := Publisher(publish_by_one)):
                for _ in range(2):
                    others = [pid for pid in workers(server) if pid != worker]
                    for pid in others:
                        os.kill(pid, signal.SIGKILL)
                    server.until(lambda before=others: len(set(workers(server)) - set(before)) >= 2, "another worker")
                    publisher.goes_on()
        assert server.log.count("holds connections") == 1


def workers(server):
    """The workers that have said that they are ready, and that live."""
    return [pid for pid in ready(server) if pid in server.processes()]


def owner(client, server):
    """The process of the server that has the other end of a connection."""
    ours, theirs = client.sock.getsockname()[1], client.sock.getpeername()[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if [int(words[place].rpartition(":")[2], 16) for place in (1, 2)] == [theirs, ours]:
            for pid in server.processes():
                if any(f"socket:[{words[9]}]" == link for link in links(pid)):
                    return pid
    raise AssertionError("no process has the connection")


def test_streams_survive_workers_that_are_recycled(tmp_path):
    with operated(tmp_path, "--max-requests", "20") as (server, _):
        # Requests for the application; those for publications do not reach it.
        publisher = Publisher(lambda number: told(server, f"/publish/n?first={number}"))
        with complete(server, publisher):
            server.until(lambda: server.log.count("ready in") >= 6, "four workers more")
        assert server.log.count("holds connections") == 1


def test_a_holder_that_is_killed_ends_its_streams_and_is_replaced():
    with Server("srv_held:application") as server:
        with Stream(server.address, "/hold/a") as stream:
            killed = holder_process(server.process.pid)
            os.kill(killed, signal.SIGKILL)
            assert stream.client.rest() == b""
        assert server.logged(f"the process that holds connections (pid {killed}) was killed by SIGKILL")
        assert server.logged("its connections are closed, and a new one starts")
        # What comes meanwhile waits.
        with Stream(server.address, "/hold/a") as stream:
            told(server, "/publish/a")
            assert stream.data(1) == ["0"]
        assert holder_process(server.process.pid) not in (None, killed)


def test_publications_without_a_holder_wait_for_it():
    publishes = free_address()
    with Server("srv_held:application", publish_bind=publishes) as server:
        assert holder_process(server.process.pid) is None
        told(server, "/publish/a?first=1&id=1")
        publish(publishes, item("a", "id: 2\ndata: 2\n\n", id="2"))
        with Stream(server.address, "/hold/a", "Last-Event-ID: none") as stream:
            assert stream.data(2) == ["1", "2"]


@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--debug",), ("--preload",), ("https",)], ids=" ".join)
def test_a_server_that_stops_completes_its_streams(arguments):
    rest = [argument for argument in arguments if argument != "https"]
    address = replace(free_address(), is_encrypted="https" in arguments)
    with Server("srv_held:application", *rest, address=address) as server:
        with (
            Stream(server.address, "/hold/a") as events,
            Stream(server.address, "/hold/a", version="1.0") as old,
            Stream(server.address, query([("Grip-Hold", "stream"), ("Grip-Channel", "a")]), body=b"") as plain,
        ):
            told(server, "/publish/a?id=1")
            server.send_signal(signal.SIGTERM)
            for stream in (events, old):
                before, retry, after = stream.ending().partition(b"retry: ")
                assert before == b"id: 1\ndata: 0\n\n" and retry
                assert 1_000 <= int(after) < 10_000 and after.endswith(b"\n\n")
            # Lines that are meant for event sources alone.
            assert plain.ending() == b"id: 1\ndata: 0\n\n"
        assert server.wait() == 0
    assert "ERROR" not in server.log


def test_clients_are_not_all_told_to_come_back_at_once():
    with Server("srv_held:application") as server:
        streams = [Stream(server.address, "/hold/a") for _ in range(10)]
        server.send_signal(signal.SIGTERM)
        assert len({stream.ending() for stream in streams}) == 10
        for stream in streams:
            stream.client.close()


def test_a_client_that_reads_nothing_does_not_keep_a_server_from_stopping():
    publishes = free_address()
    with Server("srv_held:application", publish_bind=publishes) as server:
        narrow = Narrow(server.address.host, server.address.port)
        with Stream(narrow, "/hold/a") as slow, Stream(server.address, "/hold/a") as fast:
            for _ in range(6):
                publish(publishes, item("a", f"data: {'x' * 900_000}\n\n"))
                fast.data(1)
            server.send_signal(signal.SIGTERM)
            assert b"retry: " in fast.ending()
            assert server.wait() == 0
            slow.client.rest()


# TLS: a worker relays


def test_over_tls_a_reload_completes_streams():
    address = replace(free_address(), is_encrypted=True)
    with Server("srv_held:application", address=address) as server:
        with Stream(server.address, "/hold/a") as stream:
            told(server, "/publish/a")
            assert stream.data(1) == ["0"]
            (before,) = ready(server)
            server.send_signal(signal.SIGHUP)
            assert stream.ending().startswith(b"retry: ")
        assert server.logged(f"(pid {before}) has ended")
        with Stream(server.address, "/hold/a") as stream:
            told(server, "/publish/a")
            assert stream.data(1) == ["0"]


def test_over_tls_a_client_that_leaves_is_forgotten():
    address = replace(free_address(), is_encrypted=True)
    with Server("srv_held:application", address=address) as server:
        for end in (Client.close, Client.abort):
            stream = Stream(server.address, "/hold/a")
            assert figures(server.process.pid)["connections"] == 1
            end(stream.client)
            eventually(lambda: figures(server.process.pid)["connections"] == 0, "it is forgotten")


# Limits


def test_one_client_has_no_more_held_connections_than_it_may():
    arguments = ("--max-connections-per-client", "3")
    with Server("srv_held:application", *arguments) as server:
        streams = [Stream(server.address, "/hold/a") for _ in range(3)]
        client = poll(server.address, "/hold/a")
        response = client.response()
        assert (response.status, response["retry-after"]) == (503, "10")
        assert b"cannot hold this connection" in response.body
        client.at_end(clean=True)
        client.close()
        assert server.logged("the client has reached its limit of held connections")
        # It has given up none of the others.
        told(server, "/publish/a")
        for stream in streams:
            assert stream.data(1) == ["0"]
        streams.pop().client.close()
        eventually(lambda: figures(server.process.pid)["connections"] == 2, "one has left")
        streams.append(Stream(server.address, "/hold/a"))
        for stream in streams:
            stream.client.close()


def test_a_client_that_reads_nothing_costs_bounded_memory_and_is_closed():
    publishes = free_address()
    with Server("srv_held:application", publish_bind=publishes) as server:
        narrow = Narrow(server.address.host, server.address.port)
        with Stream(narrow, "/hold/a") as slow, Stream(server.address, "/hold/a") as fast:
            content = "x" * 1_000_000
            for number in range(75):
                publish(publishes, item("a", f"id: {number}\ndata: {content}\n\n", id=str(number)))
                event = fast.event()
                assert (event["id"], len(event["data"])) == (str(number), len(content))
            found = figures(server.process.pid)
            assert found["connections"] == 2
            assert found["kept_bytes"] <= 64 * MEGABYTE and found["waiting_bytes"] < 3 * MEGABYTE
            assert resident(holder_process(server.process.pid)) < 200 * MEGABYTE
            # It is found out once it reads.
            with pytest.raises(Exception, match="broken by"):
                slow.ending()
            assert server.logged("the client was too slow, and events were dropped before it received them")
            eventually(lambda: figures(server.process.pid)["connections"] == 1, "it is closed")
            assert figures(server.process.pid)["closed"]["behind"] == 1
            publish(publishes, item("a", "data: on\n\n"))
            assert fast.data(1) == ["on"]


def resident(pid):
    """Bytes of a process in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def test_a_client_that_accepts_nothing_is_disconnected_after_the_time_for_writes():
    publishes = free_address()
    with Server("srv_held:application", publish_bind=publishes, write_timeout=1) as server:
        narrow = Narrow(server.address.host, server.address.port)
        with Stream(narrow, "/hold/a"), Stream(server.address, "/hold/a") as fast:
            for _ in range(6):
                publish(publishes, item("a", f"data: {'x' * 900_000}\n\n"))
                fast.data(1)
            eventually(lambda: figures(server.process.pid)["connections"] == 1, "it is disconnected", 60)
            publish(publishes, item("a", "data: on\n\n"))
            assert fast.data(1) == ["on"]


def test_a_client_that_goes_on_sending_is_closed():
    with Server("srv_held:application") as server:
        with Stream(server.address, "/hold/a") as polite, Stream(server.address, "/hold/a") as stream:
            polite.client.send(b"GET / HTTP/1.1\r\nHost: pipelined\r\n\r\n")
            stream.client.send(b"\0" * 100_000)
            assert stream.client.rest() == b""
            assert server.logged("the client kept sending data while its response was held")
            told(server, "/publish/a")
            assert polite.data(1) == ["0"]


def test_a_slow_client_is_sent_everything_in_order():
    publishes = free_address()
    with Server("srv_held:application", publish_bind=publishes) as server:
        narrow = Narrow(server.address.host, server.address.port)
        with Stream(narrow, "/hold/a") as slow:
            for number in range(40):
                publish(publishes, item("a", f"id: {number}\ndata: {'y' * 200_000}\n\n"))
            for number in range(40):
                event = slow.event()
                assert (event["id"], event["data"]) == (str(number), "y" * 200_000)


def test_a_large_held_response_reaches_a_slow_client():
    with Server("srv_held:application") as server:
        with Client(Narrow(server.address.host, server.address.port), 30.0) as client:
            client.send(b"GET /large-poll?size=1000000 HTTP/1.1\r\nHost: test\r\n\r\n")
            assert client.response().body == b"x" * 1_000_000
            client.at_end(clean=True)


# One is for the worker that passes the connection, and the next one for the connection.
@pytest.mark.parametrize(("spare", "answered"), [(2, True), (1, False)])
def test_without_descriptors_further_clients_are_refused_and_the_others_stay(spare, answered):
    with Server("srv_held:application") as server, Stream(server.address, "/hold/a") as stream:
        holder = holder_process(server.process.pid)
        with spare_descriptors(holder, 1, spare), poll(server.address, "/hold/a") as client:
            if answered:
                response = client.response()
                assert (response.status, response["retry-after"]) == (503, "10")
                assert b"cannot hold this connection" in response.body
            client.at_end(clean=answered)
            assert server.logged(
                "the process that holds connections has no file descriptor left; raise the limit of open"
            )
            told(server, "/publish/a")
            assert stream.data(1) == ["0"]
        with Stream(server.address, "/hold/a") as later:
            told(server, "/publish/a")
            assert stream.data(1) == later.data(1) == ["0"]
        assert figures(server.process.pid)["closed"]["no_descriptor"] == 1
        assert holder_process(server.process.pid) == holder


def test_what_the_holder_has_no_descriptor_to_accept_waits():
    with Server("srv_held:application") as server, Stream(server.address, "/hold/a") as stream:
        with spare_descriptors(holder_process(server.process.pid), 1, 0):
            waiting = poll(server.address, "/hold/a")
            # Its worker serves other requests meanwhile.
            assert told(server, "/pid") == server.pid
        response = waiting.head()
        assert response.status == 200
        assert waiting.chunk(response) == b": open\n\n"
        told(server, "/publish/a")
        assert stream.data(1) == ["0"]
        assert waiting.chunk(response).endswith(b"data: 0\n\n")
        waiting.close()


# Nothing is left


@pytest.mark.parametrize("arguments", [(), ("--debug",), ("https",)], ids=" ".join)
def test_nothing_is_left_of_streams_that_have_ended(arguments):
    rest = [argument for argument in arguments if argument != "https"]
    address = replace(free_address(), is_encrypted="https" in arguments)
    rounds, each = (6, 50) if not address.is_encrypted else (3, 20)
    with Server("srv_held:application", *rest, address=address, threads=40) as server:

        def count():
            held = holder_process(server.process.pid)
            return [len(links(pid)) for pid in (server.pid, *([held] if held else []))]

        before = None
        for turn in range(rounds):
            streams = [Stream(server.address, "/hold/a/b/c") for _ in range(each)]
            told(server, "/publish/b")
            for place, stream in enumerate(streams):
                assert stream.data(1) == ["0"]
                (stream.client.close, stream.client.abort)[place % 2]()
            eventually(lambda: figures(server.process.pid)["connections"] == 0, "all have left")
            if turn == 0:
                before = count()
        eventually(lambda: all(now <= then for now, then in zip(count(), before, strict=True)), "as before")
        found = figures(server.process.pid)
        assert found["waiting_bytes"] == 0
        if not address.is_encrypted:
            # A thread that relays ends its side in the same way when its worker stops.
            assert found["closed"]["left"] == rounds * each


def test_wrong_messages_do_the_holder_no_harm():
    with Server("srv_held:application") as server, Stream(server.address, "/hold/a") as stream:
        name = b"\0" + holder_address(server.process.pid)
        for message in (bytes(4), b"\xff" * 4, b"\1\0\0\0?", b"\5\0\0\0Hxxxx", b"\1\0\0\0M", b"\2\0"):
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(10)
                line.connect(name)
                line.sendall(message)
                line.shutdown(socket.SHUT_WR)
                assert line.recv(100) == b""
        told(server, "/publish/a")
        assert stream.data(1) == ["0"]


def test_many_publishers_at_once_keep_the_order_of_each():
    publishes = free_address()
    with Server("srv_held:application", publish_bind=publishes) as server:
        with Stream(server.address, "/hold/a") as stream:

            def go_on(name):
                for number in range(50):
                    publish(publishes, item("a", f"event: {name}\ndata: {number}\n\n"))

            threads = [threading.Thread(target=go_on, args=(name,)) for name in "wxyz"]
            for thread in threads:
                thread.start()
            events = [stream.event() for _ in range(200)]
            for thread in threads:
                thread.join()
            for name in "wxyz":
                assert [int(each["data"]) for each in events if each["event"] == name] == list(range(50))


def test_a_server_starts_where_only_internet_sockets_are_allowed_unless_an_option_needs_others(monkeypatch, caplog):
    def forbidden():
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(holding, "listen", forbidden)
    settings = server_settings()
    with caplog.at_level("WARNING", "tailrace"), holder.in_thread(settings) as sockets:
        assert sockets is None
    assert "connections cannot be held" in caplog.text
    for option in ({"publish_bind": ("127.0.0.1:0",)}, {"websocket_events": ("/ws",)}):
        (name,) = option
        with (
            pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}: "),
            holder.in_thread(replace(settings, **option)),
        ):
            pass
