"""Many connections at once, with requests cut at random: every response belongs to its request, and none is lost."""

import hashlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.server import Server
from harness.wire import Client
from server.probes import digest, told

SHAPES = ["one", "list", "bytes", "generator", "length", "sleep"]


def own_bytes(name, size):
    """What srv_script.py answers to this id."""
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def made(numbers, name):
    """A request, and what must come back: id, size, digest of the request's body."""
    size = numbers.choice([0, 1, 100, 5_000, 40_000, 300_000])
    target = f"/mix?id={name}&size={size}&shape={numbers.choice(SHAPES)}"
    body = numbers.randbytes(numbers.choice([0, 1, 500, 70_000]))
    fields = f"Host: h\r\nX-Filler: {'f' * numbers.choice([0, 10, 2000])}\r\n"
    if not body:
        head = f"GET {target} HTTP/1.1\r\n{fields}\r\n".encode()
        return head, (name, size, body)
    if numbers.random() < 0.5:
        head = f"POST {target} HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode()
        return head + body, (name, size, body)
    coded, at = [], 0
    while at < len(body):
        piece = body[at : at + numbers.randint(1, 40_000)]
        coded.append(b"%x\r\n%s\r\n" % (len(piece), piece))
        at += len(piece)
    head = f"POST {target} HTTP/1.1\r\n{fields}Transfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(coded) + b"0\r\n\r\n", (name, size, body)


def send_in_pieces(client, data, numbers):
    at = 0
    while at < len(data):
        step = numbers.choice([1, 3, 50, 1000, 30_000, 200_000])
        client.sock.sendall(data[at : at + step])
        at += step


def hammer(address, number, rounds):
    numbers = random.Random(number)
    answered = 0
    with Client(address, 60) as client:
        for turn in range(rounds):
            batch = [made(numbers, f"{number}-{turn}-{place}") for place in range(numbers.randint(1, 6))]
            data = b"".join(wire for wire, _ in batch)
            sender = threading.Thread(target=send_in_pieces, args=(client, data, numbers))
            sender.start()
            try:
                for _, (name, size, body) in batch:
                    response = client.response()
                    assert response.status == 200
                    assert response["x-id"] == name
                    assert response["x-body"] == hashlib.sha256(body).hexdigest()
                    assert digest(response.body) == digest(own_bytes(name, size))
                    answered += 1
            finally:
                sender.join()
    return answered


@pytest.mark.parametrize("threads, connections, rounds", [(8, 60, 12), (64, 60, 12), (1, 20, 12)])
def test_every_response_belongs_to_its_request(threads, connections, rounds):
    with Server("srv_script:app", threads=threads, body_memory=30_000) as server:
        with ThreadPoolExecutor(connections) as pool:
            turns = [pool.submit(hammer, server.address, number, rounds) for number in range(connections)]
            answered = sum(turn.result(90) for turn in turns)
        assert answered >= connections * rounds
        assert told(server, "/process")["most_running"] <= threads
