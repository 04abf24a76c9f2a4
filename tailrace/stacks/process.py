"""Threads of a process, each with its state, request and Python stack: parts of `/stacks`, as JSON and as text.

The state comes from the kernel, the stack from py-spy. Where a stack cannot be read, the others are still shown.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tailrace.logs import log
from tailrace.printable import printable_document
from tailrace.stacks import pyspy, tasks
from tailrace.stacks.pyspy import Frame, Stack, Unreadable
from tailrace.stacks.tasks import Task
from tailrace.stacks.waits import by_stack

# How long reading the stacks of all workers may take together (seconds).
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

# `threading`'s name of a thread that it has not started.
_FOREIGN: Final = re.compile(r"Dummy-\d+")
# The kernel's name of a thread that has not been named: its worker's (`system.title`).
_INHERITED: Final = re.compile(r"tailrace(-w\d+|-master|: .*)")
_OURS: Final = str(Path(__file__).parent.parent) + "/"
NO_REQUESTS: Final = (
    "requests are not shown for a process; use `tailrace threads --status ADDRESS`, with the address of the server's "
    "--status"
)


def of_process(number: int, pid: int) -> dict[str, Any]:
    """One process, as `/stacks` shows a worker, without its requests: they are not known."""
    found, error, threads = read(pid, pyspy.TIMEOUT)
    numbers = sorted(threads.keys() | found.keys())
    shown = [thread(each, threads.get(each), found.get(each), None, is_known=error is None) for each in numbers]
    return {"number": number, "pid": pid, "error": error, "note": NO_REQUESTS, "threads": in_order(shown)}


def read(pid: int, left: float) -> tuple[dict[int, Stack], str | None, dict[int, Task]]:
    """The stacks, why there are none, and the threads."""
    try:
        if left <= 0:
            raise Unreadable(f"not read: reading the previous workers took {BUDGET:g} s")
        found, error = pyspy.read(pid, min(left, pyspy.TIMEOUT)), None
    except Unreadable as unreadable:
        found, error = {}, str(unreadable)
    return found, error, tasks.tasks(pid)


def thread(
    number: int, task: Task | None, stack: Stack | None, asked: Mapping[str, Any] | None, *, is_known: bool = True
) -> dict[str, Any]:
    """is_known: False: neither requests nor stacks could be read, so a thread that waits may be idle or not."""
    if stack is not None:
        stack = dataclasses.replace(stack, frames=_of_application(stack.frames))
    state = _state(task, stack, asked)
    frames = pyspy.as_json(stack) if stack is not None else []
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
    """`threading`'s name, else the kernel's: a thread that names itself for the kernel, as those of the core do, has no
    name for `threading`, or one that says nothing."""
    ours, theirs = (stack.name or "") if stack is not None else "", task.name if task is not None else ""
    if not ours or (_FOREIGN.fullmatch(ours) and not _INHERITED.fullmatch(theirs)):
        return theirs or ours
    return ours


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


def in_order(threads: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
