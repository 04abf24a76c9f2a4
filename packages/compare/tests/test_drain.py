"""The client that has bodies dropped: where a response ends, and what is none."""

import socket

import pytest
from listening import serving
from tailrace_compare import drain
from tailrace_compare.drain import Drain

Pair = tuple[socket.socket, socket.socket]
HEAD = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-LENGTH: 1000\r\n\r\n"


def test_one_response_after_the_other(pair: Pair) -> None:
    client = Drain(pair[0], b"GET")
    for _ in range(2):
        client.ask()
        assert pair[1].recv(100) == b"GET"
        pair[1].sendall(HEAD + bytes(1000))
        assert client.take()
    with pytest.raises(BlockingIOError):
        client.take()


@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_response_in_pieces_ends_with_its_last_byte(pair: Pair, step: int) -> None:
    client = Drain(pair[0], b"GET")
    whole = HEAD + bytes(1000)
    for begin in range(0, len(whole) - step, step):
        pair[1].sendall(whole[begin : begin + step])
        with pytest.raises(BlockingIOError):
            client.take()
        sent = begin + step
    pair[1].sendall(whole[sent:])
    assert client.take()


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
    client = Drain(pair[0], b"GET")
    pair[1].sendall(answer)
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        client.take()
        client.take()


def test_a_connection_whose_end_is_announced_is_no_error() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(HEAD.replace(b"200 OK", b"200 OK\r\nConnection: close") + bytes(1000))

    with serving(serve) as address:
        found = drain.run(lambda: socket.create_connection(address), "/", 2, 0.2)
    assert found.answers > 2
    assert found.errors == 0
