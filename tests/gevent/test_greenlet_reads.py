"""Reads of a streamed body in greenlets: interrupted reads lose no bytes, and no reader blocks other greenlets."""

import hashlib
import io
import json
import random
import threading
from urllib.parse import quote

import pytest
from harness.greenlets import on_greenlets
from harness.server import shared
from harness.uploads import chunk, head
from server.probes import eventually

FRAMINGS = pytest.mark.parametrize("framing", ["length", "chunked"])
BODY_TIMEOUT = 2.0
READS = ["read", "read1", "readline", "readinto", "next"]
server = shared(on_greenlets, "srv_reads:app", "--stream-body", max_body="100GiB")


def told(server, target):
    """The answer of another request. What was sent before it has reached who waits for it."""
    return json.loads(server.get(target).body)


def begin(client, framing, key, program, length, more=""):
    target = f"/perform?key={key}&program={quote(json.dumps(program))}{more}"
    client.send(head(target=target, length=length if framing == "length" else None))


def pieces(framing, parts):
    coded = [part if framing == "length" else chunk(part) for part in parts]
    return coded if framing == "length" else [*coded[:-1], coded[-1] + chunk(b"")]


@FRAMINGS
@pytest.mark.parametrize(
    "what, size, first, rest, gave",
    [
        ("read", 10, b"hello", b"world", "helloworld"),
        ("read", -1, b"hello", b"world", "helloworld"),
        ("readinto", 8, b"hello", b"world", "hellowor"),
        ("readline", -1, b"hello", b"wor\nld", "hellowor\n"),
        ("readline", 8, b"hello", b"world", "hellowor"),
        ("next", 0, b"hello", b"wor\nld", "hellowor\n"),
        ("readlines", 0, b"one\ntwo\nth", b"ree\nfour", "one\n|two\n|three\n|four"),
    ],
)
def test_a_read_that_is_broken_off_leaves_what_it_had(server, framing, what, size, first, rest, gave):
    # Fails when the bytes that a read has gathered go with it.
    with server.client() as client:
        begin(client, framing, "broken", [[what, size], ["read", -1]], len(first + rest), "&once=1")
        one, two = pieces(framing, [first, rest])
        client.send(one)
        assert told(server, "/") == "pong"
        assert told(server, "/interrupt?key=broken") is True
        client.send(two)
        left = (first + rest).decode()[len(gave.replace("|", "")) :]
        assert json.loads(client.response().body) == ["interrupted", gave, left]
        # Nothing of it is left for the next request on the connection.
        begin(client, framing, "next", [["read", -1]], 4)
        assert json.loads(client.ask(pieces(framing, [b"next"])[0]).body) == ["next"]


@FRAMINGS
@pytest.mark.parametrize("seed", range(6))
def test_reads_that_are_broken_off_anywhere_give_what_a_file_gives(server, framing, seed):
    numbers = random.Random(seed)
    body = b"".join(numbers.choice([b"a", b"bcd", b"\n", bytes(300)]) for _ in range(300))
    program = [[numbers.choice(READS), numbers.randint(0, 1500)] for _ in range(60)]
    parts, at = [], 0
    while at < len(body):
        parts.append(body[at : at + numbers.randint(1, 4000)])
        at += len(parts[-1])
    with server.client() as client:
        begin(client, framing, f"seed-{seed}", [*program, ["read", -1]], len(body))
        interrupted = 0
        for piece in pieces(framing, parts):
            for _ in range(numbers.randint(0, 2)):
                interrupted += told(server, f"/interrupt?key=seed-{seed}")
            client.send(piece)
        assert interrupted > 0
        gave = json.loads(client.response().body)
    model = io.BytesIO(body)
    for (what, size), got in zip(program, gave[:-1], strict=True):
        if what == "read1":
            assert got or size == 0 or model.tell() == len(body)
            assert got == model.read(len(got)).decode("latin-1")
        elif what == "readinto":
            assert got == model.read(size).decode("latin-1")
        else:
            line = next(model, b"") if what == "next" else getattr(model, what)(size)
            assert got == line.decode("latin-1"), what
    assert gave[-1] == model.read().decode("latin-1")


def test_a_reader_that_never_waits_lets_other_greenlets_run(server):
    # The body goes on until others have been answered: fails when its reader keeps the hub while there is something.
    block, sent, enough = bytes(range(256)) * 256, [], threading.Event()
    with server.client(60) as client:
        client.send(head(target="/work"))

        def send():
            while not enough.is_set():
                client.send(chunk(block))
                sent.append(len(block))

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(10):
                assert told(server, "/") == "pong"
        finally:
            enough.set()
            sender.join()
        client.send(chunk(b""))
        expected = hashlib.sha256()
        for _ in sent:
            expected.update(block)
        assert json.loads(client.response().body) == [sum(sent), expected.hexdigest()]


@pytest.mark.parametrize("second", ["greenlet", "thread"])
@pytest.mark.parametrize("first", ["greenlet", "thread"])
def test_a_second_reader_waits_in_a_thread_and_fails_in_a_greenlet(server, first, second):
    # Fails when the hub waits for a lock that another reader holds while it waits for the client.
    key = f"{first}-{second}"
    with server.client() as client:
        client.send(head(target=f"/both?key={key}&first={first}&second={second}", length=10))
        eventually(lambda: told(server, f"/begun?key={key}"), "both have begun")
        got = json.loads(client.ask(b"helloworld").body)
    if second == "thread":
        assert sorted(got) == ["hello", "world"]
    else:
        both = "two greenlets" if first == "greenlet" else "a thread and a greenlet"
        assert got[0] == "hello"
        assert got[1].startswith(f"RuntimeError: {both} read wsgi.input of the same request at the same time")
        assert len(got) == 2


impatient = shared(on_greenlets, "srv_reads:app", "--stream-body", body_timeout=BODY_TIMEOUT)


def test_time_that_the_application_takes_does_not_count_against_the_client(impatient):
    # Fails when the time of a read begins before the read, as that of a timer does which is made in a timer's callback.
    with impatient.client(30) as client:
        client.send(head(target=f"/spin?seconds={BODY_TIMEOUT * 1.2}&then=read", length=5))
        told(impatient, "/")
        # The hub is free, so the read has begun; and has looked again, if it was told that its time is over.
        told(impatient, "/")
        assert json.loads(client.ask(b"hello").body) == 5


def test_bytes_that_arrived_in_time_are_read_by_a_late_hub(impatient):
    # Both the bytes and the end of the time are there when the hub is free again. Fails when that is taken for silence.
    with impatient.client(30) as client, impatient.client(30) as other:
        begin(client, "length", "in-time", [["read", -1]], 5)
        told(impatient, "/")
        other.send(f"GET /spin?seconds={BODY_TIMEOUT * 1.2} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        client.send(b"hello")
        assert json.loads(other.response().body) is None
        assert json.loads(client.response().body) == ["hello"]


@FRAMINGS
def test_an_interrupted_read_does_not_extend_the_time_of_a_silent_client(impatient, framing):
    # Fails when each interrupted read starts the client's time again: this request would never end.
    with impatient.client(30) as client:
        begin(client, framing, f"silent-{framing}", [["read", -1]], 10)
        client.send(pieces(framing, [b"hello", b"world"])[0])
        done = threading.Event()

        def interrupt():
            while not done.wait(0.1):
                told(impatient, f"/interrupt?key=silent-{framing}")

        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        try:
            assert client.response().status == 408
        finally:
            done.set()
            interrupter.join()
