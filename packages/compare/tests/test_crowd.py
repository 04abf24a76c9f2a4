"""The crowd's clients, by the clock that they are given."""

import socket

import pytest
from tailrace_compare.crowd import Client, Crowd, Reader, Seen, Uploader, allowance

Pair = tuple[socket.socket, socket.socket]


def test_a_pace_is_bytes_for_the_time_that_passed() -> None:
    assert allowance(1000, 5.0, 5.25) == 250


def test_a_client_that_was_kept_waiting_does_not_gallop() -> None:
    assert allowance(1000, 5.0, 500.0) == allowance(1000, 5.0, 6.0)


def test_a_reader_takes_what_its_pace_allows_and_counts_it(pair: Pair) -> None:
    seen = Seen()
    reader = Reader(pair[0], seen, "/list", 1000, 700)
    assert reader.turn(0.0)
    assert pair[1].recv(4096).startswith(b"GET /list HTTP/1.1\r\nHost: ")
    with pytest.raises(BlockingIOError):
        reader.turn(0.5)
    pair[1].sendall(b"HTTP/1.1 200 OK\r\n\r\n".ljust(1024))
    assert reader.turn(1.0)
    pair[1].sendall(bytes(10_000))
    assert reader.turn(1.5)
    assert (seen.served, seen.moved, seen.answers) == (1, 500, 0)
    assert not reader.turn(2.0)
    assert (seen.moved, seen.answers) == (700, 1)


def test_what_a_server_does_not_have_in_time_is_not_taken_later(pair: Pair) -> None:
    seen = Seen()
    reader = Reader(pair[0], seen, "/", 1000, 10_000)
    reader.turn(0.0)
    pair[1].sendall(b"HTTP/1.1 200 OK\r\n\r\n".ljust(1024))
    reader.turn(0.1)
    with pytest.raises(BlockingIOError):
        reader.turn(0.5)
    pair[1].sendall(bytes(10_000))
    reader.turn(0.75)
    assert seen.moved == 250


def test_an_uploader_sends_one_body_after_the_other(pair: Pair) -> None:
    seen = Seen()
    uploader = Uploader(pair[0], seen, "/upload", 100, 60, ahead=0.5)
    uploader.turn(0.0)
    # What it is ahead by, at once.
    uploader.turn(0.01)
    assert (seen.moved, seen.served) == (30, 1)
    uploader.turn(0.5)
    assert pair[1].recv(4096).endswith(b"Content-Length: 60\r\n\r\n" + bytes(60))
    pair[1].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n60")
    assert uploader.turn(0.6)
    assert seen.answers == 1
    uploader.turn(0.7)
    uploader.turn(0.9)
    assert pair[1].recv(4096).endswith(b"\r\n\r\n" + bytes(20))


def test_an_answer_that_is_not_the_length_is_a_fault(pair: Pair) -> None:
    seen = Seen()
    uploader = Uploader(pair[0], seen, "/upload", 100, 60, ahead=1.0)
    uploader.turn(0.0)
    uploader.turn(0.0)
    pair[1].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n59")
    assert not uploader.turn(0.5)
    assert seen.faults == {"wrong response": 1}


def crowd_of(pairs: list[Pair]) -> tuple[Crowd, Seen]:
    seen = Seen()
    clients: list[Client] = [Reader(client, seen, "/", 1000, 10_000) for client, _ in pairs]
    return Crowd(clients, seen), seen


def test_a_client_that_is_lost_does_not_count_as_one_never_served(pair: Pair) -> None:
    other = socket.socketpair()
    other[0].setblocking(False)
    crowd, seen = crowd_of([pair, other])
    for index in (0, 1):
        crowd.turn(index, 0.0)
    pair[1].sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for index in (0, 1):
        crowd.turn(index, 0.5)
    assert not crowd.is_served()
    pair[1].shutdown(socket.SHUT_WR)
    other[1].close()
    for index in (0, 1):
        crowd.turn(index, 1.0)
    assert (seen.served, seen.lost, seen.faults) == (1, 1, {"ConnectionResetError": 2})
    # Nobody is left to wait for.
    assert crowd.is_served()
