"""What an iterable gives: how many blocks of which size, and how long each took.

Thread: the one of the server that runs the request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.findings.finding import QUICK

_KNOWN: Final[tuple[type, ...]] = (type(iter([])), type(iter(())))


@dataclass
class Blocks:
    """The blocks of one response, empty ones aside. Times are milliseconds, sizes bytes.

    longest_gap: the longest time that a block took after the previous one; after: how many blocks had come before it.
    quick, quick_bytes: blocks within QUICK of the previous one, and their bytes. lines: blocks that are one line.
    others: types of blocks that are not bytes. is_timed: the times are known; those of a list are not.
    """

    count: int = 0
    bytes: int = 0
    smallest: int = 0
    largest: int = 0
    longest_gap: float = 0.0
    after: int = 0
    quick: int = 0
    quick_bytes: int = 0
    lines: int = 0
    others: list[str] = field(default_factory=list)
    is_timed: bool = False

    @property
    def mean(self) -> float:
        """Bytes of a block."""
        return self.bytes / self.count if self.count else 0.0

    def add(self, block: Any, took: float | None = None) -> None:
        """Counts a block. took: how long it took after the previous one (ms); None: not known."""
        if not isinstance(block, (bytes, bytearray, memoryview)):
            if (name := type(block).__name__) not in self.others:
                self.others.append(name)
            return
        length = len(block)
        if not length:
            return
        if self.count and took is not None:
            if took > self.longest_gap:
                self.longest_gap, self.after = took, self.count
            if took < QUICK:
                self.quick += 1
                self.quick_bytes += length
        self.smallest = min(self.smallest, length) if self.count else length
        self.largest = max(self.largest, length)
        self.count += 1
        self.bytes += length
        if isinstance(block, bytes) and block.endswith(b"\n") and block.count(b"\n") == 1:
            self.lines += 1


def of_known(blocks: Iterable[Any]) -> Blocks:
    """The blocks of a list or tuple."""
    counted = Blocks()
    for block in blocks:
        counted.add(block)
    return counted


class Timed:
    """An iterable around the application's: counts and times its blocks. `ended` is called after `close()`."""

    def __init__(self, iterable: Iterable[Any], blocks: Blocks, ended: Any) -> None:
        self._iterable = iterable
        self._blocks = blocks
        self._ended = ended

    def __iter__(self) -> Iterator[Any]:
        clock, add = time.perf_counter, self._blocks.add
        blocks = iter(self._iterable)
        # The server takes all blocks of such an iterator at once.
        is_timed = self._blocks.is_timed = not isinstance(blocks, _KNOWN)
        before = clock()
        while True:
            try:
                block = next(blocks)
            except StopIteration:
                return
            add(block, (clock() - before) * 1e3 if is_timed else None)
            yield block
            before = clock()

    def close(self) -> None:
        """Closes the application's iterable."""
        try:
            close = getattr(self._iterable, "close", None)
            if close is not None:
                close()
        finally:
            self._ended()
