"""The client that has bodies dropped: where a response ends, and what is none."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tailrace.compare.drain import Drain

Pair = tuple[socket.socket, socket.socket]
HEAD = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-LENGTH: 1000\r\n\r\n"


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The client's end, which does not block, and the server's."""
    client, server = socket.socketpair()
    client.setblocking(False)
    with client, server:
        yield client, server


def test_one_response_after_the_other(pair: Pair) -> None:
    drain = Drain(pair[0], b"GET")
    for _ in range(2):
        drain.ask()
        assert pair[1].recv(100) == b"GET"
        pair[1].sendall(HEAD + bytes(1000))
        assert drain.take()
    with pytest.raises(BlockingIOError):
        drain.take()


@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_response_in_pieces_ends_with_its_last_byte(pair: Pair, step: int) -> None:
    drain = Drain(pair[0], b"GET")
    whole = HEAD + bytes(1000)
    for begin in range(0, len(whole) - step, step):
        pair[1].sendall(whole[begin : begin + step])
        with pytest.raises(BlockingIOError):
            drain.take()
        sent = begin + step
    pair[1].sendall(whole[sent:])
    assert drain.take()


@pytest.mark.parametrize(
    "answer",
    [
        HEAD.replace(b"200 OK", b"503 No") + bytes(1000),
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1000),
        HEAD + bytes(1001),
        HEAD + bytes(999),
        b"HTTP/1.1 200",
    ],
)
def test_what_is_not_a_whole_response_is_an_error(pair: Pair, answer: bytes) -> None:
    drain = Drain(pair[0], b"GET")
    pair[1].sendall(answer)
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        drain.take()
        drain.take()
