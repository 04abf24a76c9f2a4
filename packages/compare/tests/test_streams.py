"""Streams that get a block a second, by the bytes and the clock that they are given."""

import socket
from collections.abc import Iterator

import pytest
from tailrace_compare.served import shapes
from tailrace_compare.streams import Stream, Streams, missed


@pytest.fixture
def stream() -> Iterator[Stream]:
    with socket.socket() as connection:
        yield Stream(connection)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(block: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(block), block)


def test_the_blocks_of_the_application_are_understood(stream: Stream) -> None:
    blocks = shapes.seconds()
    stamps = stream.take(HEAD + chunk(next(blocks)))
    assert len(stamps) == 1
    assert stream.number == 0


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_a_block_counts_once_wherever_the_bytes_are_cut(stream: Stream, cut: int) -> None:
    whole = HEAD + chunk(b"data: 0 111\n\n") + chunk(b"data: 1 222\n\n")
    assert stream.take(whole[:cut]) + stream.take(whole[cut:]) == [111, 222]


def test_a_lost_block_is_noticed(stream: Stream) -> None:
    stream.take(HEAD + chunk(b"data: 0 111\n\n"))
    with pytest.raises(ValueError, match="out of order"):
        stream.take(chunk(b"data: 2 333\n\n"))


def test_a_second_is_kept_when_its_block_comes_in_its_grace() -> None:
    assert [missed(seconds) for seconds in (0.05, 1.0, 1.09, 1.11, 2.05, 2.2)] == [0, 0, 0, 1, 1, 2]


@pytest.fixture
def client() -> Iterator[Streams]:
    """Measures, and the last blocks came at 0."""
    streams = Streams(("127.0.0.1", 1), "/", 1)
    streams.measures = True
    with streams.poll:
        yield streams


def test_the_age_of_a_block_is_from_its_stamp_to_its_arrival(client: Streams, stream: Stream) -> None:
    client.take(stream, b"data: 0 995000000\n\n", 1_000_000_000)
    client.take(stream, b"data: 1 1998000000\n\n", 2_000_000_000)
    assert list(client.ages) == [5_000_000, 2_000_000]
    assert client.seen.missed == 0


@pytest.mark.parametrize(
    ("blocks", "now", "missed"),
    [
        (b"data: 0 1\n\n", 2_050_000_000, 1),
        # After its grace.
        (b"data: 0 1\n\n", 1_200_000_000, 1),
        # In a heap.
        (b"data: 0 1\n\ndata: 1 2\n\n", 2_050_000_000, 0),
    ],
)
def test_a_silent_second_is_a_missed_block(
    client: Streams, stream: Stream, blocks: bytes, now: int, missed: int
) -> None:
    client.take(stream, blocks, now)
    assert client.seen.missed == missed


def test_a_stream_that_ends_is_over(client: Streams, stream: Stream) -> None:
    with pytest.raises(ConnectionResetError):
        client.take(stream, b"", 1_000_000_000)
