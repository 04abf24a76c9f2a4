"""Random rhythms, and when the blocks of a response have arrived."""

import socket
import threading

import pytest
from tailrace_compare.served import rhythm, shapes
from tailrace_compare.served.rhythm import Arrival

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def block(kind: bytes, stamp: int, size: int = 40) -> bytes:
    return b"%b%06d%019d" % (kind, size, stamp) + b"." * (size - rhythm.HEAD)


def test_a_seed_has_its_rhythm() -> None:
    assert rhythm.bursts(1) == rhythm.bursts(1)
    assert rhythm.bursts(1) != rhythm.bursts(2)


@pytest.mark.parametrize("seed", range(20))
def test_a_burst_holds_at_least_a_block_and_no_more_than_its_bytes(seed: int) -> None:
    for burst in rhythm.bursts(seed):
        assert len(burst.sizes) >= 1
        assert sum(burst.sizes) <= rhythm.MAX_BYTES
        assert min(burst.sizes) >= rhythm.HEAD
        assert rhythm.SHORTEST <= burst.pause <= rhythm.LONGEST


def test_a_block_is_as_large_as_it_says() -> None:
    for size in (rhythm.HEAD, 27, 65536):
        (came,) = rhythm.arrivals([(0, HEAD + rhythm.made(rhythm.QUICK, size))])
        assert (came.size, came.last) == (size, False)


def test_the_last_blocks_of_the_application_are_those_before_its_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[bytes] = []
    ends: list[int] = []
    monkeypatch.setattr("time.sleep", lambda _: ends.append(len(bodies)))
    for made in shapes.rhythmic(3):
        bodies.append(made)
    came = rhythm.arrivals([(0, HEAD + b"".join(bodies))])
    assert [at + 1 for at, one in enumerate(came) if one.last] == ends
    assert [one.size for one in came] == [size for burst in rhythm.bursts(3) for size in burst.sizes]


def test_a_block_has_arrived_with_its_last_byte() -> None:
    first, second = block(b"Q", 100), block(b"L", 200)
    pieces = [(1000, HEAD + first[:-1]), (1001, first[-1:] + second[:5]), (1002, second[5:])]
    assert rhythm.arrivals(pieces) == [Arrival(40, 901, False), Arrival(40, 802, True)]


@pytest.mark.parametrize("cut", range(1, 190, 3))
@pytest.mark.parametrize("chunks", [(40, 40), (80,), (13, 27, 40), (50, 30)])
def test_chunks_are_not_blocks(cut: int, chunks: tuple[int, ...]) -> None:
    body = block(b"Q", 100) + block(b"L", 200)
    whole, at, end_of_first = CHUNKED, 0, 0
    for size in chunks:
        whole += b"%x\r\n" % size + body[at : at + size]
        at += size
        if not end_of_first and at >= 40:
            end_of_first = len(whole) - (at - 40)
        end_of_second = len(whole)
        whole += b"\r\n"
    whole += b"0\r\n\r\n"
    came = rhythm.arrivals([(1000, whole[:cut]), (2000, whole[cut:])])
    assert [one.age for one in came] == [
        (1000 if end_of_first <= cut else 2000) - 100,
        (1000 if end_of_second <= cut else 2000) - 200,
    ]


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 500 Oh\r\n\r\n",
        HEAD + block(b"Q", 1)[:-1],
        HEAD + block(b"Q", 1, 40).replace(b"000040", b"000000"),
        CHUNKED + b"28\r\n" + block(b"Q", 1) + b"\r\n",
        CHUNKED + b"28\r\n" + block(b"Q", 1)[:-5],
    ],
)
def test_what_is_not_a_whole_response_is_refused(response: bytes) -> None:
    with pytest.raises(ValueError):
        rhythm.arrivals([(1, response)])


def test_a_response_is_taken_until_the_server_closes() -> None:
    client, server = socket.socketpair()

    def serve() -> None:
        with server:
            assert server.recv(100) == b"GET"
            server.sendall(HEAD + block(b"L", 1))

    with client:
        thread = threading.Thread(target=serve)
        thread.start()
        taken = rhythm.take(client, b"GET")
        thread.join()
    assert b"".join(data for _, data in taken.pieces) == HEAD + block(b"L", 1)
    assert taken.pause > 0
