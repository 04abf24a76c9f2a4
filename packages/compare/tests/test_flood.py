"""The open load, against servers of this process."""

import itertools
import socket
import threading

import pytest
from listening import serving
from tailrace_compare import flood

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("kept", [True, False])
def test_answers_by_status_and_what_was_broken_off(kept: bool) -> None:
    numbers = itertools.count(1)

    def serve(connection: socket.socket) -> None:
        while connection.recv(1000):
            number = next(numbers)
            if number % 5 == 0:
                return
            status = b"200 OK" if number % 3 == 0 else b"503 Service Unavailable"
            connection.sendall(ANSWER.replace(b"200 OK", status))

    with serving(serve) as address:
        found = flood.run(address, flood.steady(1000, 0.15), kept=kept, patience=10.0)
    assert (found.count(200), found.count(503), found.faults) == (40, 80, {"broken": 30})
    slowest = found.percentile(503, 0.99)
    assert slowest is not None
    assert slowest >= (found.percentile(503, 0.5) or 0)
    assert found.percentile(404, 0.5) is None


def test_requests_that_are_not_answered_in_time_are_timeouts() -> None:
    numbers = itertools.count()
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        if next(numbers) % 2:
            over.wait(60)
        connection.sendall(ANSWER)

    with serving(serve) as address:
        found = flood.run(address, flood.steady(100, 0.1), kept=False, patience=1.5)
        over.set()
    assert (found.count(200), found.faults) == (5, {"timeouts": 5})


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    found = flood.run(address, flood.steady(100, 0.03))
    assert sum(found.faults.values()) == 3


def test_new_connections_are_asked_for_with_close() -> None:
    seen = []

    def serve(connection: socket.socket) -> None:
        seen.append(connection.recv(1000))
        connection.sendall(ANSWER)

    with serving(serve) as address:
        flood.run(address, flood.steady(100, 0.03), "/page", kept=False, patience=10.0)
    assert seen == [b"GET /page HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"] * 3


def test_an_answer_counts_from_its_planned_time() -> None:
    # Each look at the clock takes a second: the second request is due long before it is sent.
    ticks = itertools.count()

    def serve(connection: socket.socket) -> None:
        while connection.recv(1000):
            connection.sendall(ANSWER)

    with serving(serve) as address:
        found = flood.Load(address, [0.0, 0.5], patience=1e9, clock=lambda: float(next(ticks))).run()
    assert found.late == [1.0, 1.5]
    assert len(found.times[200]) == 2
    assert min(found.times[200]) > found.late[1]


def test_arrivals_are_as_many_as_asked_for_and_the_same_for_the_same_seed() -> None:
    times = flood.arrivals(1000, 10, 7)
    assert times == flood.arrivals(1000, 10, 7) != flood.arrivals(1000, 10, 8)
    assert times == sorted(times)
    assert times[-1] < 10
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert flood.steady(4, 1) == [0.0, 0.25, 0.5, 0.75]


def test_a_quantile_is_one_of_the_values() -> None:
    assert flood.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert flood.quantile([3.0, 1.0, 2.0], 0.99) == 3.0
