"""`--debug`: one thread does everything, and also waits for a slow client."""

import hashlib
import signal

import pytest
from harness.server import Server
from server.probes import PATTERN, asking, request

SIZE = 40 * len(PATTERN)


@pytest.fixture
def debugging():
    with Server("srv_shapes:app", "--debug") as server:
        yield server


def test_a_slow_client_gets_all_of_a_long_generator(debugging):
    with asking(debugging, f"/generator?size={SIZE}&block=50000&length={SIZE}") as client:
        client.head()
        got, taken = hashlib.sha256(), 0
        while taken < SIZE:
            piece = client.read(min(1 << 20, SIZE - taken))
            assert piece
            got.update(piece)
            taken += len(piece)
        assert got.hexdigest() == hashlib.sha256(PATTERN * (SIZE // len(PATTERN))).hexdigest()
        client.send(request("/"))
        assert client.response().body == b"pong"


def test_a_signal_ends_a_server_that_waits_for_its_client(debugging):
    with asking(debugging, f"/generator?size={SIZE}&block=50000&length={SIZE}") as client:
        client.head()
        debugging.send_signal(signal.SIGINT)
        assert debugging.logged("SIGINT: finishing the requests in flight")
        debugging.send_signal(signal.SIGINT)
        assert debugging.wait() == 0
