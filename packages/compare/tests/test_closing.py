"""The wrapper that calls `close()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tailrace_compare.served.closing import closing

if TYPE_CHECKING:
    from collections.abc import Iterator


class Body:
    """An iterable that counts how often it was closed."""

    def __init__(self, *blocks: bytes | Exception) -> None:
        self.blocks = blocks
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self.blocks:
            if isinstance(block, Exception):
                raise block
            yield block

    def close(self) -> None:
        self.closed += 1


def start_response(*_: Any) -> Any:
    """Takes the head."""


def test_the_body_is_the_same_and_it_is_closed_once() -> None:
    body = Body(b"a", b"b")
    assert closing(lambda *_: body)({}, start_response) == [b"a", b"b"]
    assert body.closed == 1
    assert closing(lambda *_: [b"c"])({}, start_response) == [b"c"]


def test_it_is_closed_after_an_error_too() -> None:
    body = Body(b"a", KeyError("x"))
    with pytest.raises(KeyError, match="x"):
        closing(lambda *_: body)({}, start_response)
    assert body.closed == 1
