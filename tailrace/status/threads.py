"""`/stacks`: each thread of the workers, with its request and its Python stack.

The request of a thread comes from the scoreboard, its state from the kernel, its stack from py-spy. Where a stack
cannot be read, the others are still shown. Reading is limited, since it costs processor time: one read at a time, and
what was read is the answer for `AGE`.

Thread: any of the status process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from tailrace.stacks.process import BUDGET, GREENLET, SENDING, in_order, read, thread
from tailrace.stacks.pyspy import Stack
from tailrace.stacks.tasks import Task
from tailrace.status.document import request
from tailrace.status.snapshot import Snapshot, WorkerSnapshot

# How old an answer may be, and how long a request waits for the read of another one (seconds).
AGE: Final = 0.5

_IN_GREENLETS: Final = (
    "requests run in greenlets: each stack is that of the running greenlet; `kill -URG %d` logs the stacks of all"
)


class Busy(Exception):
    """Another read goes on."""


class Reader:
    """Reads the stacks of workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # One more may wait for the lock: threads of the status process are left for other addresses.
        self._places = threading.BoundedSemaphore(2)
        self._known: dict[int, tuple[float, dict[str, Any]]] = {}

    def read(self, before: Snapshot, again: Any, pid: int | None = None) -> list[dict[str, Any]]:
        """The workers of a snapshot; only the one with this number.

        again: takes another snapshot, after the stacks were read. Raises Busy; and what `again` raises.
        """
        wanted = [each for each in before.workers if pid in (None, each.pid)]
        if not self._places.acquire(blocking=False):
            raise Busy
        try:
            return self._read_alone(wanted, before, again)
        finally:
            self._places.release()

    def _read_alone(self, wanted: list[WorkerSnapshot], before: Snapshot, again: Any) -> list[dict[str, Any]]:
        if not self._lock.acquire(timeout=AGE):
            raise Busy
        try:
            now = time.monotonic()
            until = now + BUDGET
            self._known = {pid: known for pid, known in self._known.items() if now - known[0] < AGE}
            late = [each for each in wanted if each.pid not in self._known]
            found = {each.pid: read(each.pid, until - time.monotonic()) for each in late}
            after = {each.pid: each for each in again().workers} if late else {}
            for each in late:
                shown = worker(each, after.get(each.pid), *found[each.pid], greenlets=before.state.gevent)
                self._known[each.pid] = (time.monotonic(), shown)
            return [self._known[each.pid][1] for each in wanted]
        finally:
            self._lock.release()


def worker(
    before: WorkerSnapshot,
    after: WorkerSnapshot | None,
    found: Mapping[int, Stack],
    error: str | None,
    threads: Mapping[int, Task],
    *,
    greenlets: bool,
) -> dict[str, Any]:
    """One worker for the document. before, after: the worker before and after its stacks were read (None: it has
    ended). A stack belongs to a request that ran at both times."""
    begun = {(each["thread"], each["id"]) for each in before.requests}
    running = [request(before, each) for each in (after or before).requests]
    shown = []
    if greenlets:
        shown += [_in_greenlet(each) for each in running]
        running = []
    by_thread = {each["thread"]: each for each in running}
    for number in sorted(threads.keys() | found.keys() | by_thread.keys()):
        asked = by_thread.get(number)
        is_same = asked is None or (number, asked["id"]) in begun
        shown.append(thread(number, threads.get(number), found.get(number) if is_same else None, asked))
    note = _IN_GREENLETS % before.pid if greenlets else None
    return {"number": before.number, "pid": before.pid, "error": error, "note": note, "threads": in_order(shown)}


def _in_greenlet(asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "thread": asked["thread"],
        "name": "greenlet",
        "request": asked,
        "state": SENDING if asked["phase"] == SENDING else GREENLET,
        "waits_for": None,
        "holds_interpreter": None,
        "frames": [],
    }
