"""`--publish-bus`: what is published on one server reaches the clients of all, once and in order."""

import contextlib
import os
import re
import signal
import socket
import struct
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.held import DEADLINE, Numbered, Publisher, Stream, figures, holder_address, holder_process, item, publish
from harness.operated import operating
from harness.postgres import Postgres
from harness.redis import Redis
from harness.server import APPS, children
from server.probes import at_once, eventually


@pytest.fixture(params=[Redis, Postgres], ids=["redis", "postgresql"])
def service(request):
    with request.param() as made:
        yield made


@pytest.fixture
def redis():
    with Redis() as made:
        yield made


@contextlib.contextmanager
def joined(directory, url, *arguments):
    """A server of two workers on this bus, and its address for publications."""
    directory.mkdir()
    publishes = free_address()
    command = ("srv_held:application", "--workers", "2", "--publish-bind", publishes.bind, *arguments)
    path = os.pathsep.join(filter(None, (str(APPS), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, "TAILRACE_PUBLISH_BUS": url}
    with operating(directory, *command, environment=environment) as server:
        yield server, publishes


@contextlib.contextmanager
def two(directory, url, *arguments):
    """Two servers that know each other."""
    with (
        joined(directory / "a", url, *arguments) as (first, publishes),
        joined(directory / "b", url, *arguments) as (second, _),
    ):
        for server in (first, second):
            knows(server, 1)
        yield first, publishes, second


def of_bus(server):
    """The figures of the bus of a server."""
    return figures(server.master)["bus"]


def knows(server, others):
    """Returns once this server is connected with so many others."""

    def is_so():
        found = of_bus(server)
        return found.get("connected") and found.get("servers") == others

    eventually(is_so, "other servers", DEADLINE)


def bus_process(server):
    """The bus process of a server."""
    for child in children(server.master):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"bus" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"[")[0]:
                return child
    return None


def name_of(server):
    """Its name on the bus."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(DEADLINE)
        line.connect(b"\0" + holder_address(server.master))
        line.sendall(struct.pack("<I", 1) + b"B")
        answer = b""
        while b"}" not in answer:
            answer += line.recv(65536)
        return re.search(rb'"name":"([0-9a-f]{32})"', answer)[1].decode()


def publisher_at(address):
    return Publisher(lambda number: publish(address, item("n", f"id: {number}\ndata: {number}\n\n", id=str(number))))


@contextlib.contextmanager
def complete(publishes, *servers):
    """Clients of these servers that must be sent every number, each once, and in order."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Numbered(server.address, "/hold/n")) for server in servers]
        publisher = stack.enter_context(publisher_at(publishes))
        publisher.goes_on()
        yield publisher
        publisher.goes_on()
        count = publisher.stop()
        for client in clients:
            client.has(count)


def test_clients_of_all_servers_get_what_is_published_on_one(tmp_path, service):
    with two(tmp_path, service.url) as (first, publishes, second):
        with complete(publishes, first, second) as publisher:
            publisher.goes_on(200)
        with Stream(first.address, "/hold/back") as stream:
            assert second.get("/publish/back?data=from-the-application").status == 200
            assert stream.data(1) == ["from-the-application"]
        # A client that comes back to the other server is sent what it has missed.
        with Stream(second.address, "/hold/n", "Last-Event-ID: 5") as late:
            assert late.data(3) == ["6", "7", "8"]
        assert of_bus(first)["published"] >= 200 and of_bus(first)["received"] == 1
        assert of_bus(first)["lost"] == of_bus(second)["lost"] == 0
        for server in (first, second):
            assert server.stop() == 0
            assert "s3cret" not in server.log


def test_nothing_is_lost_while_the_service_is_down(tmp_path, service):
    with two(tmp_path, service.url) as (first, publishes, second):
        with complete(publishes, first, second) as publisher:
            for _ in range(2):
                service.stop()
                publisher.goes_on(100)
                eventually(lambda: not of_bus(first)["connected"] and of_bus(first)["waiting"], "it waits", DEADLINE)
                service.start()
                publisher.goes_on(100)
        for server in (first, second):
            server.logged("again, after")
            assert of_bus(server)["lost"] == 0


def test_nothing_is_lost_when_connections_are_cut(tmp_path, service):
    with two(tmp_path, service.url) as (first, publishes, second):
        with complete(publishes, first, second) as publisher:
            for _ in range(5):
                service.cut()
                publisher.goes_on(50)
        assert of_bus(second)["lost"] == 0


def test_nothing_is_lost_when_the_bus_process_is_killed(tmp_path, service):
    with two(tmp_path, service.url) as (first, publishes, second):
        with complete(publishes, first, second) as publisher:
            for server in (first, second, first):
                before = bus_process(server)
                os.kill(before, signal.SIGKILL)
                server.until(lambda s=server, b=before: bus_process(s) not in (None, b), "another bus process")
                publisher.goes_on(50)
        assert "the bus process" in first.log and of_bus(second)["lost"] == 0


def test_the_first_publication_is_not_lost_when_the_bus_process_is_killed(tmp_path, service):
    with two(tmp_path, service.url) as (_, publishes, second):
        with Stream(second.address, "/hold/n") as stream:
            before = bus_process(second)
            os.kill(before, signal.SIGKILL)
            second.until(lambda: bus_process(second) != before, "its end")
            publish(publishes, item("n", "data: first\n\n"))
            assert stream.data(1) == ["first"]


def test_much_that_was_published_while_the_service_is_down_arrives(tmp_path, service):
    data = "x" * 500_000
    with two(tmp_path, service.url) as (_, publishes, second):
        with Stream(second.address, "/hold/n") as stream:
            service.stop()
            for number in range(50):
                publish(publishes, item("n", f"data: {number}{data}\n\n"))
            service.start()
            assert [found.rstrip("x") for found in stream.data(50)] == [str(number) for number in range(50)]
        assert of_bus(second)["lost"] == 0


def test_the_last_publications_of_a_server_that_ends_arrive(tmp_path, service):
    with two(tmp_path, service.url) as (first, publishes, second):
        with Stream(second.address, "/hold/n") as stream:
            for number in range(100):
                publish(publishes, item("n", f"data: {number}\n\n"))
            assert first.stop() == 0
            assert stream.data(100) == [str(number) for number in range(100)]


def test_nothing_is_lost_or_doubled_over_reloads_and_upgrades(tmp_path, service):
    with two(tmp_path, service.url) as (first, publishes, second):
        with complete(publishes, first, second) as publisher:
            for server in (first, second):
                server.tell(signal.SIGHUP)
                server.replaced(1)
                before = server.master
                server.tell(signal.SIGUSR2)
                server.logged(f"taken over from process {before}")
                server.until(lambda s=server, b=before: b not in s.processes(), "the end of the old master")
                publisher.goes_on()
        assert of_bus(first)["lost"] == of_bus(second)["lost"] == 0
        for server in (first, second):
            assert server.stop() == 0


def test_a_server_that_joins_does_not_get_what_was_before(tmp_path, redis):
    with joined(tmp_path / "a", redis.url) as (first, publishes):
        for number in range(100):
            publish(publishes, item("n", f"data: {number}\n\n"))
        with joined(tmp_path / "b", redis.url) as (second, _):
            knows(second, 1)
            # Because of the unknown ID, it is sent all that this server has.
            with Stream(second.address, "/hold/n", "Last-Event-ID: unknown") as stream:
                publish(publishes, item("n", "data: new\n\n"))
                assert stream.data(1) == ["new"]
            with Stream(first.address, "/hold/n", "Last-Event-ID: unknown") as stream:
                assert stream.data(101) == [*map(str, range(100)), "new"]
        eventually(lambda: of_bus(first)["servers"] == 0, "the end of the other server", DEADLINE)


def test_large_publications_and_other_alphabets(tmp_path, service):
    text = "ü\u20ac\U0001f600" * 20_000
    with two(tmp_path, service.url) as (first, publishes, second):
        with Stream(second.address, "/hold/n") as stream:
            for data in ("small", text, "x" * 1_000_000, "last"):
                publish(publishes, item("n", f"data: {data}\n\n"))
            assert stream.data(4) == ["small", text, "x" * 1_000_000, "last"]
        assert first.stop() == 0


def test_messages_of_other_programs_are_ignored(tmp_path, service):
    with two(tmp_path, service.url) as (_, publishes, second):
        with Stream(second.address, "/hold/n") as stream:
            name = "0" * 32
            for message in ("hello", "D", "Dx", f"H{name} x y", f"D{name} 1", f"A{name} 1", f"D{name} -1", "?", "H"):
                service.publish("tailrace", message)
            publish(publishes, item("n", "data: x\n\n"))
            assert stream.data(1) == ["x"]
        if isinstance(service, Redis):
            assert second.log.count("a message from another program was ignored") == 1
        assert of_bus(second)["lost"] == 0


def test_requests_for_what_does_not_exist_do_not_stop_a_server(tmp_path, service):
    with two(tmp_path, service.url) as (first, publishes, second):
        holder, name = holder_process(first.master), name_of(first)
        with Stream(second.address, "/hold/n") as stream:
            for number in (-5, 0, 99_999_999_999, 2**63, 2**64, 10**4000):
                service.publish("tailrace", f"A{name} {number}")
                publish(publishes, item("n", f"data: {number}\n\n"))
                assert stream.data(1) == [str(number)]
        assert holder_process(first.master) == holder and of_bus(second)["lost"] == 0


def test_many_questions_have_few_answers(tmp_path, redis):
    with joined(tmp_path / "a", redis.url) as (server, _):
        knows(server, 0)
        name = name_of(server)
        with socket.create_connection(("127.0.0.1", redis.port), DEADLINE) as client:
            client.sendall(f"AUTH {redis.password}\r\nSUBSCRIBE tailrace\r\n".encode())
            for _ in range(100):
                redis.publish("tailrace", "?" + "0" * 32)
            redis.publish("tailrace", "end")
            heard = b""
            while b"end\r\n" not in heard:
                heard += client.recv(65536)
        assert heard.count(b"?0000") == 100
        assert heard.count(b"H" + name.encode()) <= 3, heard


def test_an_error_of_the_service_does_not_quote_publications(tmp_path, redis):
    redis.ask("ACL SETUSER mute on >s3cret ~* &* +@all -publish")
    with joined(tmp_path / "a", f"redis://mute:s3cret@127.0.0.1:{redis.port}") as (server, _):
        server.logged("publications cannot be sent")
        assert "NOPERM" in server.log or "no permissions" in server.log
        assert "PUBLISH tailrace" not in server.log


def test_channels_of_the_service_separate_sites(tmp_path, redis):
    other = f"{redis.url}?channel=other"
    with (
        joined(tmp_path / "a", redis.url) as (first, publishes),
        joined(tmp_path / "b", other) as (second, others),
        joined(tmp_path / "c", other) as (third, _),
    ):
        knows(second, 1)
        knows(third, 1)
        knows(first, 0)
        with Stream(third.address, "/hold/n") as stream:
            publish(publishes, item("n", "data: of another site\n\n"))
            publish(others, item("n", "data: ours\n\n"))
            assert stream.data(1) == ["ours"]


def test_the_number_of_a_database_does_not_separate_sites(tmp_path, redis):
    with (
        joined(tmp_path / "a", f"{redis.url}/0") as (first, publishes),
        joined(tmp_path / "b", f"{redis.url}/1") as (second, _),
    ):
        knows(first, 1)
        knows(second, 1)
        with Stream(second.address, "/hold/n") as stream:
            publish(publishes, item("n", "data: of another database\n\n"))
            assert stream.data(1) == ["of another database"]


def test_the_service_may_be_encrypted(tmp_path):
    with Redis(is_encrypted=True) as redis, two(tmp_path, redis.url) as (first, publishes, second):
        with complete(publishes, first, second) as publisher:
            publisher.goes_on(50)
            redis.cut()
            publisher.goes_on(50)
        assert of_bus(first)["lost"] == of_bus(second)["lost"] == 0
        for server in (first, second):
            assert server.stop() == 0
            assert "s3cret" not in server.log


def test_an_encrypted_service_that_is_not_trusted_is_not_used(tmp_path):
    with Redis(is_encrypted=True) as redis, joined(tmp_path / "a", redis.url.partition("?")[0]) as (server, publishes):
        server.logged("certificate verify failed")
        assert not of_bus(server)["connected"]
        with Stream(server.address, "/hold/n") as stream:
            publish(publishes, item("n", "data: x\n\n"))
            assert stream.data(1) == ["x"]


def test_valkey(tmp_path):
    with Redis(program="valkey-server") as valkey:
        with two(tmp_path, valkey.url.replace("redis://", "valkey://")) as (first, publishes, second):
            with complete(publishes, first, second) as publisher:
                publisher.goes_on(50)
                valkey.cut()
                publisher.goes_on(50)
            assert of_bus(first)["lost"] == of_bus(second)["lost"] == 0


def test_servers_that_publish_at_the_same_time_have_each_their_own_order(tmp_path, service):
    count = 300
    with (
        joined(tmp_path / "a", service.url) as (first, of_first),
        joined(tmp_path / "b", service.url) as (second, of_second),
    ):
        knows(first, 1)
        knows(second, 1)

        def go_on(name, address):
            for number in range(count):
                publish(address, item("n", f"event: {name}\ndata: {number}\n\n"))

        with Stream(first.address, "/hold/n") as one, Stream(second.address, "/hold/n") as other:
            at_once(lambda: go_on("first", of_first), lambda: go_on("second", of_second))
            for stream in (one, other):
                events = [stream.event() for _ in range(2 * count)]
                for name in ("first", "second"):
                    numbers = [int(event["data"]) for event in events if event["event"] == name]
                    assert numbers == list(range(count))
        assert of_bus(first)["lost"] == of_bus(second)["lost"] == 0


def test_processes_that_listen_hear_other_servers(tmp_path, redis):
    with two(tmp_path, redis.url) as (_, publishes, second):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.settimeout(DEADLINE)
            listener.connect(b"\0" + holder_address(second.master))
            listener.sendall(struct.pack("<I", 2) + b"Ln")
            assert listener.recv(1) == b"+"
            publish(publishes, item("n", formats={"raw": {"content": "hello"}}))
            assert listener.recv(100) == b"\x06\0\0\0Lhello"


def test_another_holder_goes_on(tmp_path, redis):
    with two(tmp_path, redis.url) as (first, publishes, second):
        for server in (first, second):
            before = holder_process(server.master)
            os.kill(before, signal.SIGKILL)
            server.until(lambda s=server, b=before: holder_process(s.master) not in (None, b), "another holder")
        knows(second, 1)
        with complete(publishes, first, second) as publisher:
            publisher.goes_on(50)


def test_publishing_does_not_wait_for_a_service_that_does_not_answer(tmp_path, redis):
    with two(tmp_path, redis.url) as (first, publishes, second):
        with Stream(first.address, "/hold/n") as own, Stream(second.address, "/hold/n") as other:
            redis.pause()
            try:
                for number in range(50):
                    publish(publishes, item("n", f"data: {number}\n\n"))
                assert own.data(50) == [str(number) for number in range(50)]
            finally:
                redis.go_on()
            assert other.data(50) == [str(number) for number in range(50)]


def test_a_server_that_ends_says_that_it_could_not_send(tmp_path, redis):
    with two(tmp_path, redis.url) as (first, publishes, second):
        redis.stop()
        publish(publishes, item("n", "data: x\n\n"))
        before = first.master
        first.tell(signal.SIGUSR2)
        first.logged(f"taken over from process {before}")
        first.until(lambda: before not in first.processes(), "the end of the old master")
        assert "the last publications could not be sent" not in first.log
        publish(publishes, item("n", "data: y\n\n"))
        for server in (first, second):
            assert server.stop() == 0
        assert first.log.count("the last publications could not be sent") == 1
        assert "the last publications could not be sent" not in second.log


def test_an_address_that_the_library_rejects_is_in_the_log(tmp_path, redis):
    with joined(tmp_path / "a", f"{redis.url}/x?nonsense=1") as (server, publishes):
        server.logged("--publish-bus: redis://127.0.0.1")
        with Stream(server.address, "/hold/n") as stream:
            publish(publishes, item("n", "data: x\n\n"))
            assert stream.data(1) == ["x"]
        assert server.stop() == 0
