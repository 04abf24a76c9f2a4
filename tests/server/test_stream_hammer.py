"""`--stream-body` with many connections at once: bodies that are read, left or aborted never mix."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.server import Server
from harness.uploads import chunk, head
from server.probes import asking, await_waiting, descriptors, digest, eventually, open_gate, told

KINDS = ["sum", "sum", "back", "left", "get"]
ENDS = ["close", "half-close", "malformed", "stay"]


def made(numbers, place):
    """A request, and what must be in its response."""
    kind = numbers.choice(KINDS)
    if kind == "get":
        return f"GET /?{place} HTTP/1.1\r\nHost: h\r\n\r\n".encode(), lambda body: body == b"pong"
    body = numbers.randbytes(numbers.choice([0, 1, 500, 5_000, 70_000, 300_000]))
    target, expected = "/back", digest(body)
    if kind != "back":
        most = numbers.randint(0, len(body)) if kind == "left" else len(body) + 1
        target, expected = f"/sum?most={most}", json.dumps(digest(body[:most]))

    def is_expected(got):
        return (digest(got) if kind == "back" else got.decode()) == expected

    if numbers.random() < 0.5:
        return head(target=target, length=len(body)) + body, is_expected
    coded, at = [], 0
    while at < len(body):
        coded.append(chunk(piece := body[at : at + numbers.randint(1, 40_000)]))
        at += len(piece)
    return head(target=target) + b"".join(coded) + chunk(b""), is_expected


def send_in_pieces(client, data, numbers):
    at = 0
    while at < len(data):
        step = numbers.choice([1, 3, 50, 1000, 30_000, 200_000])
        if not client.send(data[at : at + step]):
            # The server has said that it closes, and has closed.
            return
        at += step


def converse(server, numbers, rounds):
    """Batches of pipelined requests until the server says that it closes; the number of right answers."""
    answered = 0
    with server.client(60) as client:
        for turn in range(rounds):
            batch = [made(numbers, f"{turn}-{place}") for place in range(numbers.randint(1, 5))]
            data = b"".join(wire for wire, _ in batch)
            sender = threading.Thread(target=send_in_pieces, args=(client, data, random.Random(numbers.random())))
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
            client.send(head(target="/raise") + b"5\r\nhello\r\nnonsense\r\n")
            assert client.response().status == 400
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
        waiting = [asking(server, "/wait?gate=after") for _ in range(threads - 1)]
        await_waiting(server, "after", threads - 1)
        open_gate(server, "after")
        assert {client.response().status for client in waiting} <= {200}
        for client in waiting:
            client.close()
        assert "Traceback" not in server.log
