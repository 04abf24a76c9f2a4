"""The time of a request inside the application, measured the same way under any server.

    from tailrace_tools.timing import timed

    application = timed(application)

A line for each request goes to the logger `tailrace.timing`, at level INFO. The time runs from the call of the
application to the end of `close()`, so figures of several servers can be compared: with a server that does not let the
application wait for the client, the time is short.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["Timing", "timed"]

logger = logging.getLogger("tailrace.timing")


@dataclass
class Timing:
    """What was measured of one request. Times are milliseconds.

    app_ms: from the call of the application to the end of `close()`. first_block_ms: to its first block that is not
    empty; None without one. blocks, bytes: of the body as the server took it, empty blocks aside.
    """

    method: str
    path: str
    status: str = ""
    app_ms: float = 0.0
    first_block_ms: float | None = None
    blocks: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        first = "-" if self.first_block_ms is None else f"{self.first_block_ms:.3f}"
        return (
            f"{self.method} {self.path} {self.status[:3] or '-'} app_ms={self.app_ms:.3f} first_block_ms={first} "
            f"blocks={self.blocks} bytes={self.bytes}"
        )


def _log(timing: Timing) -> None:
    logger.info("%s", timing)


def timed(application: WSGIApplication, *, tell: Callable[[Timing], None] = _log) -> WSGIApplication:
    """An application that measures `application`.

    tell: called with the Timing of each request at its end; by default logs it. The iterable is wrapped, so the server
    cannot see that it is a list or a file, and cannot deliver it as such.
    """

    def measured(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        timing = Timing(environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", ""))
        began = time.perf_counter()

        def noting_start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            timing.status = status
            if exc_info is None:
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        def end() -> None:
            timing.app_ms = (time.perf_counter() - began) * 1e3
            tell(timing)

        try:
            iterable = application(environ, noting_start_response)
        except BaseException:
            end()
            raise
        kind = _MeasuredWithLength if hasattr(iterable, "__len__") else _Measured
        return kind(iterable, timing, began, end)

    return measured


class _Measured:
    """An application's iterable: counts the blocks, and calls `end` on `close()`."""

    def __init__(self, iterable: Iterable[bytes], timing: Timing, began: float, end: Callable[[], None]) -> None:
        self._iterable = iterable
        self._timing = timing
        self._began = began
        self._end = end

    def __iter__(self) -> Iterator[bytes]:
        timing = self._timing
        for block in self._iterable:
            if block:
                if timing.first_block_ms is None:
                    timing.first_block_ms = (time.perf_counter() - self._began) * 1e3
                timing.blocks += 1
                timing.bytes += len(block)
            yield block

    def close(self) -> None:
        try:
            close = getattr(self._iterable, "close", None)
            if close is not None:
                close()
        finally:
            self._end()


class _MeasuredWithLength(_Measured):
    """Measures an iterable with a length, which servers read (PEP 3333 "Handling the Content-Length Header")."""

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]
