"""Many connections at once, with requests cut at random: every response belongs to its request, and none is lost."""

import hashlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.server import Server
from harness.uploads import head
from harness.wire import Client
from server.probes import chunked, digest, in_pieces, request, told

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
    filler = f"X-Filler: {'f' * numbers.choice([0, 10, 2000])}"
    if not body:
        return request(target, filler), (name, size, body)
    if numbers.random() < 0.5:
        return head(filler, target=target, length=len(body)) + body, (name, size, body)
    return head(filler, target=target) + chunked(body, numbers), (name, size, body)


def hammer(address, number, rounds):
    numbers = random.Random(number)
    answered = 0
    with Client(address, 60) as client:
        for turn in range(rounds):
            batch = [made(numbers, f"{number}-{turn}-{place}") for place in range(numbers.randint(1, 6))]
            data = b"".join(wire for wire, _ in batch)
            sender = threading.Thread(target=in_pieces, args=(client, data, numbers))
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


@pytest.mark.nightly(gate=1)
@pytest.mark.parametrize("threads, connections, rounds", [(8, 60, 12), (64, 60, 12), (1, 20, 12)])
def test_every_response_belongs_to_its_request(threads, connections, rounds):
    with Server("srv_script:app", threads=threads, client_memory="8MiB") as server:
        with ThreadPoolExecutor(connections) as pool:
            turns = [pool.submit(hammer, server.address, number, rounds) for number in range(connections)]
            answered = sum(turn.result(90) for turn in turns)
        assert answered >= connections * rounds
        assert told(server, "/process")["most_running"] <= threads
