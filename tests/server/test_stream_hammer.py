"""`--stream-body` with many connections at once: bodies that are read, left or aborted never mix."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.server import Server
from harness.uploads import head
from server.probes import chunked, descriptors, digest, eventually, in_pieces, request, run_at_once, told

KINDS = ["sum", "sum", "back", "left", "get"]
ENDS = ["close", "half-close", "malformed", "stay"]


def made(numbers, place):
    """A request, and what must be in its response."""
    kind = numbers.choice(KINDS)
    if kind == "get":
        return request(f"/?{place}"), lambda body: body == b"pong"
    body = numbers.randbytes(numbers.choice([0, 1, 500, 5_000, 70_000, 300_000]))
    target, expected = "/back", digest(body)
    if kind != "back":
        most = numbers.randint(0, len(body)) if kind == "left" else len(body) + 1
        target, expected = f"/sum?most={most}", json.dumps(digest(body[:most]))

    def is_expected(got):
        return (digest(got) if kind == "back" else got.decode()) == expected

    if numbers.random() < 0.5:
        return head(target=target, length=len(body)) + body, is_expected
    return head(target=target) + chunked(body, numbers), is_expected


def converse(server, numbers, rounds):
    """Batches of pipelined requests until the server says that it closes; the number of right answers."""
    answered = 0
    with server.client(60) as client:
        for turn in range(rounds):
            batch = [made(numbers, f"{turn}-{place}") for place in range(numbers.randint(1, 5))]
            data = b"".join(wire for wire, _ in batch)
            sender = threading.Thread(target=in_pieces, args=(client, data, random.Random(numbers.random())))
            sender.start()
            try:
                for _, is_expected in batch:
                    response = client.response()
                    assert response.status == 200
                    assert is_expected(response.body)
                    answered += 1
                    if response.connection == {"close"}:
                        client.at_end()
                        return answered
            finally:
                sender.join()
        end = numbers.choice(ENDS)
        if end == "malformed":
            assert client.ask(head(target="/raise") + b"5\r\nhello\r\nnonsense\r\n").status == 400
            client.at_end()
        elif end != "stay":
            client.send(head(target="/raise", length=1000 if numbers.random() < 0.5 else None) + b"5\r\nhel")
            if end == "half-close":
                client.finish_sending()
                assert client.response().status == 400
    return answered


def hammer(server, number):
    numbers = random.Random(number)
    return sum(converse(server, numbers, 4) for _ in range(8))


@pytest.mark.nightly(gate=1)
@pytest.mark.parametrize("threads, connections", [(8, 40), (64, 40), (1, 10)])
def test_every_streamed_body_belongs_to_its_request(threads, connections):
    with Server("stream_app:app", "--stream-body", threads=threads) as server:
        told(server, "/process")
        before = descriptors(server)
        with ThreadPoolExecutor(connections) as pool:
            turns = [pool.submit(hammer, server, number) for number in range(connections)]
            assert all(turn.result(120) for turn in turns)
        eventually(lambda: descriptors(server) <= before, "descriptors closed")
        assert told(server, "/process")["most_running"] <= threads
        # No thread is left in a read.
        run_at_once(server, "after", threads)
        assert "Traceback" not in server.log
