"""`/stacks`: each thread of the workers, with its request and its Python stack, as JSON or as text.

The request of a thread comes from the scoreboard, its state from the kernel, its stack from py-spy. Where a stack
cannot be read, the others are still shown. Reading is limited, since it costs processor time: one read at a time, and
what was read is the answer for `AGE`.

Thread: any of the status process; `text` also in the command.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tailrace.logs import log
from tailrace.printable import printable_document
from tailrace.status import stacks, tasks
from tailrace.status.document import request
from tailrace.status.snapshot import Snapshot, WorkerSnapshot
from tailrace.status.stacks import Frame, Stack, Unreadable
from tailrace.status.tasks import Task
from tailrace.status.waits import by_stack

# How old an answer may be, and how long a request waits for the read of another one (seconds).
AGE: Final = 0.5
# How long all workers may take together (seconds).
BUDGET: Final = 5.0

RUNNING: Final = "running"
WAITING: Final = "waiting"
FOR_INTERPRETER: Final = "waiting for the interpreter"
SENDING: Final = "sending"
IDLE: Final = "idle"
GREENLET: Final = "in a greenlet"
# A state that says nothing.
UNKNOWN: Final = "unknown"

# What a state means, in one line.
EXPLAINED: Final = {
    RUNNING: "the thread is computing, in Python or in a library",
    WAITING: "the thread is waiting for a lock, a timer, a file, a database or the network",
    FOR_INTERPRETER: "the thread could run, but another one holds the interpreter (the GIL)",
    SENDING: "the thread is waiting for its client to read more of the response",
    IDLE: "the thread has no work",
    GREENLET: "the request runs in a greenlet of this thread; stacks of waiting greenlets are not read",
    UNKNOWN: "the thread has ended, or it is waiting and neither its request nor its stack is known",
}

_OURS: Final = str(Path(__file__).parent.parent) + "/"
_IN_GREENLETS: Final = (
    "requests run in greenlets: each stack is that of the running greenlet; `kill -URG %d` logs the stacks of all"
)
NO_REQUESTS: Final = (
    "requests are not shown for a process; use `tailrace threads --status ADDRESS`, with the address of the server's "
    "--status"
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
            read = {each.pid: _read(each.pid, until - time.monotonic()) for each in late}
            after = {each.pid: each for each in again().workers} if late else {}
            for each in late:
                shown = worker(each, after.get(each.pid), *read[each.pid], greenlets=before.state.gevent)
                self._known[each.pid] = (time.monotonic(), shown)
            return [self._known[each.pid][1] for each in wanted]
        finally:
            self._lock.release()


def of_process(number: int, pid: int) -> dict[str, Any]:
    """One process, as `worker` has it, without a scoreboard: the requests are not known."""
    found, error, threads = _read(pid, stacks.TIMEOUT)
    numbers = sorted(threads.keys() | found.keys())
    shown = [_thread(each, threads.get(each), found.get(each), None, is_known=error is None) for each in numbers]
    return {"number": number, "pid": pid, "error": error, "note": NO_REQUESTS, "threads": _sorted(shown)}


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
        shown.append(_thread(number, threads.get(number), found.get(number) if is_same else None, asked))
    note = _IN_GREENLETS % before.pid if greenlets else None
    return {"number": before.number, "pid": before.pid, "error": error, "note": note, "threads": _sorted(shown)}


def _read(pid: int, left: float) -> tuple[dict[int, Stack], str | None, dict[int, Task]]:
    """The stacks, why there are none, and the threads."""
    try:
        if left <= 0:
            raise Unreadable(f"not read: reading the previous workers took {BUDGET:g} s")
        found, error = stacks.read(pid, min(left, stacks.TIMEOUT)), None
    except Unreadable as unreadable:
        found, error = {}, str(unreadable)
    return found, error, tasks.tasks(pid)


def _thread(
    number: int, task: Task | None, stack: Stack | None, asked: Mapping[str, Any] | None, *, is_known: bool = True
) -> dict[str, Any]:
    """is_known: False: neither requests nor stacks could be read, so a thread that waits may be idle or not."""
    if stack is not None:
        stack = dataclasses.replace(stack, frames=_of_application(stack.frames))
    state = _state(task, stack, asked)
    frames = stacks.as_json(stack) if stack is not None else []
    return {
        "thread": number,
        "name": _name(task, stack),
        "request": asked,
        "state": UNKNOWN if not is_known and state == IDLE else state,
        "waits_for": by_stack(task.waits_for, frames) if task is not None and state == WAITING else None,
        "holds_interpreter": stack.holds_interpreter if stack is not None else None,
        "frames": frames,
    }


def _of_application(frames: list[Frame]) -> list[Frame]:
    """Without the outermost calls, by which Tailrace and `threading` begin a thread."""
    last = len(frames)
    while last and (frames[last - 1].file.startswith(_OURS) or frames[last - 1].file == threading.__file__):
        last -= 1
    return frames[:last]


def _name(task: Task | None, stack: Stack | None) -> str:
    if task is not None and task.name.startswith("tailrace-") and (stack is None or stack.name != "MainThread"):
        return task.name
    if stack is not None and stack.name:
        return stack.name
    return task.name if task is not None else ""


def _state(task: Task | None, stack: Stack | None, asked: Mapping[str, Any] | None) -> str:
    if asked is not None and asked["phase"] == SENDING:
        return SENDING
    if task is None:
        return UNKNOWN
    if task.runs:
        return RUNNING
    if task.waits_for_interpreter:
        return FOR_INTERPRETER
    if asked is None and (stack is None or not stack.frames or stack.frames[0].file.startswith(_OURS)):
        return IDLE
    return WAITING


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


def _sorted(threads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with the oldest requests first, then those that do something."""

    def key(each: dict[str, Any]) -> tuple[Any, ...]:
        asked = each["request"]
        return (asked is None, -asked["seconds"] if asked else 0, each["state"] == IDLE, each["thread"])

    return sorted(threads, key=key)


def text(workers: list[dict[str, Any]]) -> str:
    """The document as text that a terminal may print: a block of lines for each worker."""
    return "\n\n".join("\n".join(_block(each)) for each in printable_document(workers)) + "\n"


def _block(found: Mapping[str, Any]) -> Iterator[str]:
    states = Counter(each["state"] for each in found["threads"])
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    title = f"worker {found['number']}, process" if found["number"] else "process"
    yield f"{title} {found['pid']}: {len(found['threads'])} threads: {counted}"
    if found["error"]:
        yield f"no stacks: {found['error']}"
    if found["note"]:
        yield f"note: {found['note']}"
    for each in found["threads"]:
        yield from thread_lines(each)


def thread_lines(each: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one thread, whose texts are printable already."""
    holds = ", holds the interpreter" if each["holds_interpreter"] else ""
    # A server of an earlier version does not say it.
    waits = f" ({each['waits_for']})" if each.get("waits_for") else ""
    yield f"  thread {each['thread']} {each['name']}: {each['state']}{waits}{holds}"
    if asked := each["request"]:
        client = f" from {asked['client']}" if asked["client"] else ""
        yield f"    {log.request_name(asked)}{client}, for {asked['seconds']:.3f} s"
    # Those of an idle thread are Tailrace's own.
    for frame in each["frames"] if each["state"] != IDLE else []:
        yield f"      {frame['function']} ({frame['file']}:{frame['line']})"
