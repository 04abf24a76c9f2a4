"""The rate of clients that ask again and again."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading

import pytest

from tailrace.compare import sleepers
from tailrace.compare.sleepers import Counted


def test_an_answer_across_the_edge_counts_for_its_part() -> None:
    counted = Counted([(number / 10 + 0.05, number / 10 + 0.15) for number in range(40)])
    assert counted.rate(1.0, 3.0) == pytest.approx(10.0)


def test_answers_as_long_as_the_window_count_where_they_end() -> None:
    assert Counted([(0.0, 1.0), (0.0, 2.0), (0.0, 3.5)]).rate(0.5, 2.5) == 1.0


def test_no_answers_are_no_rate() -> None:
    assert Counted().rate(0.0, 1.0) == 0.0


def test_a_server_that_resets_connections_and_answers_nonsense_is_counted_and_ends_nothing() -> None:
    answers = itertools.cycle([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n\r\n"])
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        connection.recv(4096)
                        connection.sendall(next(answers))

        thread = threading.Thread(target=serve)
        thread.start()
        _, counted = sleepers.run(listener.getsockname(), 4, 0.05, 0.2)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert counted.errors["reset"] > 0
