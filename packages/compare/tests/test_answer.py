"""Where a response ends, for every way of framing one, and however its bytes arrive."""

import pytest
from tailrace_compare import client
from tailrace_compare.answer import Answer, Garbled

WITH_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nslept"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nslept\r\n0\r\n\r\n"


@pytest.mark.parametrize("response", [WITH_LENGTH, CHUNKED], ids=["length", "chunked"])
def test_complete_with_the_last_byte_and_not_before(response: bytes) -> None:
    answer = Answer()
    assert not any(answer.feed(bytes([byte])) for byte in response[:-1])
    assert not answer.end(), "a close before the end is not an answer"
    assert answer.feed(response[-1:])
    assert answer.status == 200


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1", b"HTTP/1.1 fine", b"HTTP/1.1 200 OK\r\nContent-Length: many", b"\xff \xff"]
)
def test_what_is_no_response_is_an_error_of_the_connection(head: bytes) -> None:
    with pytest.raises(Garbled):
        Answer().feed(head + b"\r\n\r\n")


def test_a_client_that_ends_is_an_error() -> None:
    with pytest.raises(OSError, match="the client has exited"), client.started("no_such_module", [], 10.0):
        pass


def test_empty_chunked_body() -> None:
    assert Answer().feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")


def test_without_framing_the_close_is_the_end() -> None:
    answer = Answer()
    assert not answer.feed(b"HTTP/1.1 200 OK\r\n\r\nslept")
    assert answer.end()
    assert answer.body == b"slept"


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (b"HTTP/1.1 200 OK", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close", True),
        (b"HTTP/1.0 200 OK", True),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", False),
    ],
)
def test_whether_the_connection_lives(head: bytes, closes: bool) -> None:
    answer = Answer()
    answer.feed(head + b"\r\nContent-Length: 0\r\n\r\n")
    assert answer.closes is closes
