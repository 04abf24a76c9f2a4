"""The times of the open load, against a server that answers when it is told to."""

from __future__ import annotations

import itertools
import socket
import threading

import pytest

from bench.open_load import REQUEST, answer_size, arrivals, play, quantile

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_arrivals_are_as_many_as_asked_for_and_the_same_for_the_same_seed() -> None:
    times = arrivals(1000, 10, 7)
    assert times == arrivals(1000, 10, 7) != arrivals(1000, 10, 8)
    assert times == sorted(times)
    assert times[-1] < 10
    assert len(times) == pytest.approx(10_000, rel=0.05)


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0


def answer(server: socket.socket, answers: list[bytes]) -> None:
    for each in answers:
        assert server.recv(4096) == REQUEST
        server.sendall(each)


def test_an_answer_counts_from_its_planned_time_though_there_was_no_connection_for_its_request() -> None:
    # Each look at the clock takes a second: the second request is due long before the first one is answered.
    ticks = itertools.count()
    client, server = socket.socketpair()
    with client, server:
        thread = threading.Thread(target=answer, args=(server, [ANSWER, ANSWER]))
        thread.start()
        taken, late = play([client], [0.0, 0.5], len(ANSWER), clock=lambda: float(next(ticks)))
        thread.join()
    assert late[0] == 1.0
    assert 1.0 < taken[0] < late[1] + 0.5 < taken[1] + 0.5


def test_an_answer_may_come_in_parts() -> None:
    client, server = socket.socketpair()
    with client, server:
        server.sendall(ANSWER[:20])
        thread = threading.Timer(0.01, server.sendall, args=[ANSWER[20:]])
        thread.start()
        taken, late = play([client], [0.0], len(ANSWER))
        thread.join()
    assert taken[0] > late[0]


def test_the_size_of_an_answer_counts_its_head() -> None:
    client, server = socket.socketpair()
    with client, server:
        server.sendall(ANSWER)
        assert answer_size(client) == len(ANSWER)


@pytest.mark.parametrize("wrong", [ANSWER.replace(b"200 OK", b"503 No"), b""])
def test_an_answer_that_is_wrong_or_missing_is_an_error(wrong: bytes) -> None:
    client, server = socket.socketpair()
    with client, server:
        server.sendall(wrong)
        server.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            play([client], [0.0], len(ANSWER))
