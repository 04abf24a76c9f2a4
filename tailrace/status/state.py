"""What the master tells the status process: one value, as JSON in memory that both share.

The master writes without waiting, whatever the reader does. A reader finds by a checksum that it has read while the
master wrote, and reads again; so neither needs a lock, and a master that is killed while it writes does no harm.

Thread: the master's only one writes; any thread of the status process reads.
"""

from __future__ import annotations

import json
import mmap
import struct
import time
import zlib
from typing import Final, NamedTuple

STARTING: Final = "starting"
SERVING: Final = "serving"
DRAINING: Final = "draining"
HUNG: Final = "hung"
STATES: Final = (STARTING, SERVING, DRAINING, HUNG)

# The serial number, the length of the text and its checksum.
_HEAD: Final = struct.Struct("=QII")
# In addition to what workers need: room for longer numbers, and for the counts of ended workers, whose 3,850 buckets of
# times are written only if they have responses (bytes).
_SPARE: Final = 256 << 10
# At most so much is one worker in JSON (bytes).
_WORKER: Final = 512
_ATTEMPTS: Final = 1000


class WorkerState(NamedTuple):
    """One worker as the master sees it. since, clock: when the state began, by the monotonic and the wall clock."""

    number: int
    pid: int
    place: int
    generation: int
    state: str
    since: float
    clock: float


class State(NamedTuple):
    """The server as the master sees it.

    began: by the monotonic clock. wanted: how many workers are to serve. threads_each: how many requests a worker may
    run at once, in threads or greenlets. stopping: draining has begun. has_served: a worker has served at some time.
    may_hang: no heartbeat for some time means that a worker hangs. gevent: requests run in greenlets. restarts: how
    many workers were replaced, by reason. ended: the counters of the workers that have ended, added; delivered: the
    counts of their responses, which have each name from the start, except for buckets of times. counted: time
    since which responses are counted by endpoint (Unix time). certificates: the file
    of each, and when it expires (Unix time). holder: the process that holds connections; 0: none runs. holder_address:
    the abstract address where it accepts, without the first byte.
    """

    application: str
    listeners: list[str]
    master: int
    began: float
    wanted: int
    threads_each: int
    stopping: bool
    has_served: bool
    may_hang: bool
    gevent: bool
    restarts: dict[str, int]
    ended: dict[str, int]
    delivered: dict[str, dict[str, int]]
    workers: list[WorkerState]
    counted: float
    certificates: list[tuple[str, float]]
    holder: int
    holder_address: str


class SharedState:
    """A `State` in memory that is shared with the processes that are forked later."""

    def __init__(self, first: State, places: int) -> None:
        self._serial = 0
        self._last: State | None = None
        self._memory = mmap.mmap(-1, _HEAD.size + 2 * len(_text(first)) + _SPARE + places * _WORKER)
        self.write(first)

    def write(self, state: State) -> None:
        """For the master: replaces the value. Raises ValueError when it is too large."""
        if state == self._last:
            return
        text = _text(state)
        if _HEAD.size + len(text) > len(self._memory):
            raise ValueError(f"a state of {len(text)} bytes is too large")
        self._serial += 1
        self._memory[: _HEAD.size] = _HEAD.pack(self._serial, len(text), _checksum(self._serial, text))
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        self._last = state

    def read(self) -> tuple[int, State]:
        """For the status process: the value, and its serial number, which is another one after each change.

        Raises OSError when the master does not finish writing.
        """
        for attempt in range(_ATTEMPTS):
            serial, length, checksum = _HEAD.unpack(self._memory[: _HEAD.size])
            text = self._memory[_HEAD.size : _HEAD.size + length]
            if _checksum(serial, text) == checksum:
                return serial, _state(text)
            if attempt:
                time.sleep(0.001)
        raise OSError("the master has not finished writing its state")


def _checksum(serial: int, text: bytes) -> int:
    return zlib.crc32(text, serial & 0xFFFFFFFF)


def _text(state: State) -> bytes:
    return json.dumps(state, separators=(",", ":")).encode()


def _state(text: bytes) -> State:
    found = State(*json.loads(text))
    return found._replace(workers=[WorkerState(*each) for each in found.workers])
