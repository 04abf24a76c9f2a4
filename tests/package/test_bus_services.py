"""What servers send documents over, without a service."""

import socket
import threading
import time

import pytest

from tailrace.bus import services
from tailrace.bus.services import ServiceError
from tailrace.system.bus_address import parse


@pytest.fixture
def postgresql():
    pytest.importorskip("psycopg")
    return services.PostgreSQL(parse("postgresql:///x"))


@pytest.mark.parametrize("message", [b"D", b"D1 2\n{}", b"x" * 100_000, "\u20ac".encode() * 10_000, b"a\0b"], ids=len)
def test_a_message_arrives_in_parts(postgresql, message):
    parts = postgresql._split(message)
    assert all(len(part.encode()) < 8_000 for part in parts) and len(set(parts)) == len(parts)
    assert [postgresql._joined(part) for part in parts] == [None] * (len(parts) - 1) + [message]
    assert not postgresql._parts


def test_parts_of_several_messages_may_be_mixed(postgresql):
    one, two = postgresql._split(b"1" * 20_000), postgresql._split(b"2" * 20_000)
    found = [postgresql._joined(part) for pair in zip(one, two, strict=True) for part in pair]
    assert found == [None] * 4 + [b"1" * 20_000, b"2" * 20_000]


def test_a_message_without_its_beginning_is_dropped(postgresql):
    parts = postgresql._split(b"1" * 20_000)
    assert [postgresql._joined(part) for part in parts[1:]] == [None, None]
    assert not postgresql._parts


def test_parts_of_other_programs_have_a_limit(postgresql):
    for at in range(1, 1000):
        assert postgresql._joined(f"x {at} 1000000 t {'y' * 7_900}") is None
    assert not postgresql._parts


def test_a_url_that_libpq_rejects_is_not_quoted():
    pytest.importorskip("psycopg")
    with pytest.raises(ServiceError) as error:
        services.PostgreSQL(parse("postgresql://u:s3cret@h/x?nonsense=s3cret"))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1?chanel=x", "postgresql://u:s3cret@127.0.0.1:1/x?chanel=x"])
def test_an_unknown_parameter_is_named(url):
    pytest.importorskip("psycopg" if url.startswith("postgresql") else "redis")
    with pytest.raises(ServiceError, match="has an unknown parameter 'chanel'"):
        services.connection(parse(url))


def test_a_parameter_that_changes_messages_is_refused():
    pytest.importorskip("redis")
    with pytest.raises(ServiceError, match="decode_responses"):
        services.connection(parse("redis://127.0.0.1:1?decode_responses=True"))


def test_a_message_of_which_a_part_has_come_is_waited_for():
    pytest.importorskip("redis")
    answers = {b"SUBSCRIBE": b"*3\r\n$9\r\nsubscribe\r\n$8\r\ntailrace\r\n:1\r\n"}

    def message(content):
        return b"*3\r\n$7\r\nmessage\r\n$8\r\ntailrace\r\n$%d\r\n%s\r\n" % (len(content), content)

    def serve():
        client, _ = listener.accept()
        with client:
            while data := client.recv(4096):
                for name, answer in answers.items():
                    if name in data:
                        client.sendall(answer)
                        whole = message(b"small") + message(b"x" * 200_000)
                        client.sendall(whole[:100_000])
                        time.sleep(0.5)
                        client.sendall(whole[100_000:])
                        break
                else:
                    # Whatever a client says at its start.
                    client.sendall(b"+OK\r\n" * data.count(b"*"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        receiver = services.Redis(parse(f"redis://127.0.0.1:{listener.getsockname()[1]}?protocol=2"))
        found = receiver.receive(1.0)
        while len(found) < 2:
            found += receiver.receive(1.0)
        assert found == [b"small", b"x" * 200_000]
        receiver.close()
