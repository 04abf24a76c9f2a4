"""The rate of clients that ask again and again."""

import itertools
import socket
import struct

import pytest
from listening import serving
from tailrace_compare import sleepers
from tailrace_compare.sleepers import Counted


def test_the_rate_counts_answers_for_the_part_that_lies_in_the_window() -> None:
    counted = Counted([(number / 10 + 0.05, number / 10 + 0.15) for number in range(40)])
    assert counted.rate(1.0, 3.02) == pytest.approx(10.0)
    # Answers as long as the window count where they end.
    assert Counted([(0.0, 1.0), (0.0, 2.0), (0.0, 3.5)]).rate(0.5, 2.5) == 1.0
    assert Counted().rate(0.0, 1.0) == 0.0


def test_a_server_that_resets_connections_and_answers_nonsense_is_counted_and_ends_nothing() -> None:
    answers = itertools.cycle([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n\r\n"])

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.recv(4096)
        connection.sendall(next(answers))

    with serving(serve) as address:
        _, counted = sleepers.run(address, 4, 0.05, 0.2)
    assert counted.errors["reset"] > 0
