"""The figures of the process that holds connections, which it gives over the socket where workers pass it connections.

A page never waits long for that process: what it said last is shown again if it does not answer in time, or another
thread asks it already. It is asked only while it runs: a connection to its socket has the master start it.

Thread: any of the status process.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tailrace.status.state import State

_ASK: Final = struct.pack("<I", 1) + b"F"
# How long it may take to answer (seconds), and for how long it is not asked again when it did not.
TIMEOUT: Final = 0.2
PAUSE: Final = 2.0
# For how long an answer serves the next page, too (seconds).
_FRESH: Final = 0.25
_PART: Final = 65536


class _Answer(NamedTuple):
    pid: int
    at: float
    figures: Mapping[str, Any]


class Reader:
    """Reads the figures, of one server. clock: the monotonic one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Held by the thread that asks.
        self._asking = threading.Lock()
        self._last: _Answer | None = None
        self._ask_at = float("-inf")

    def read(self, state: State) -> dict[str, Any] | None:
        """The figures of the process, its `pid`, and `age_seconds`: for how long these are known. None: no process
        holds connections, or it has never answered."""
        if not state.holder:
            return None
        if self._clock() >= self._ask_at and self._asking.acquire(blocking=False):
            try:
                self._ask(state.holder, state.holder_address)
            finally:
                self._asking.release()
        last = self._last
        if last is None or last.pid != state.holder:
            return None
        return {"pid": last.pid, "age_seconds": round(max(0.0, self._clock() - last.at), 3), **last.figures}

    def _ask(self, pid: int, address: str) -> None:
        try:
            found = _asked(address, self._clock)
        except (OSError, ValueError):
            # It is busy, stopped, or has just ended.
            self._ask_at = self._clock() + PAUSE
        else:
            found["largest"] = [{"channel": name, "connections": number} for name, number in found["largest"]]
            self._last = _Answer(pid, self._clock(), found)
            self._ask_at = self._clock() + _FRESH


def _asked(address: str, clock: Callable[[], float]) -> dict[str, Any]:
    """Its answer. Raises OSError, and ValueError for an answer that is incomplete."""
    until = clock() + TIMEOUT
    received = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(TIMEOUT)
        line.connect(f"\0{address}")
        line.sendall(_ASK)
        # It closes the connection once it has answered.
        line.shutdown(socket.SHUT_WR)
        while part := line.recv(_PART):
            received += part
            if (left := until - clock()) <= 0:
                raise TimeoutError
            line.settimeout(left)
    found: dict[str, Any] = json.loads(received)
    return found
