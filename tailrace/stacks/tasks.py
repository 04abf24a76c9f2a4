"""The threads of a process as the kernel shows them in /proc: numbers, names, and whether each runs or what it waits
for. Any thread.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailrace.stacks.waits import by_call

# The number of the system call in which a thread waits for a lock, by machine (syscalls(2)).
_FUTEX: Final = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")
_PYTHON: Final = re.compile(r".*/libpython3[^/]*\.so[^/]*")

_Range = tuple[int, int]


# A thread that waits for the interpreter wakes every 5 ms to request it, which takes a few microseconds. On a busy
# machine it then waits for a processor, and the kernel reports it as running: in a third of all samples, with three
# times as many threads as processors. So a thread counts as running only if it uses this much processor time
# (nanoseconds) after the first sample, or if it does not sleep in any of this many samples, this far apart (seconds).
_USED: Final = 1_000_000
_LOOKS: Final = 25
_PAUSE: Final = 0.002


@dataclass(frozen=True)
class Task:
    """A thread. waits_for_interpreter: for the GIL; False also where the kernel does not tell. waits_for: what else it
    waits for, in a word; None: it runs, or the kernel does not tell."""

    name: str
    runs: bool
    waits_for_interpreter: bool
    waits_for: str | None = None


def tasks(pid: int) -> dict[int, Task]:
    """The threads of a process by number; none when it has ended. Takes up to 50 ms."""
    try:
        numbers = sorted(int(each.name) for each in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return {}
    ranges = _interpreter_data(pid)
    found = {number: task for number in numbers if (task := _task(pid, number, ranges)) is not None}
    awake = {number: _processor_time(pid, number) for number, task in found.items() if task.runs}
    for _ in range(_LOOKS):
        if not awake:
            break
        time.sleep(_PAUSE)
        for number, used in list(awake.items()):
            again = _task(pid, number, ranges)
            if again is not None and not again.runs:
                found[number] = again
            if again is None or not again.runs or _processor_time(pid, number) - used >= _USED:
                del awake[number]
    return found


def _task(pid: int, number: int, ranges: Collection[_Range]) -> Task | None:
    """The thread at this moment; None: it has ended."""
    try:
        # The name is in parentheses and may contain any character.
        line = Path(f"/proc/{pid}/task/{number}/stat").read_text(errors="replace")
    except OSError:
        return None
    before, _, after = line.rpartition(") ")
    called = _system_call(pid, number)
    # The thread may wake, or begin to wait, between the reads of the two files.
    waits = _is_wait_in(ranges, called)
    runs = not waits and (after[:1] in ("R", "D") or called[:1] == ["running"])
    return Task(before.partition(" (")[2], runs, waits, None if runs or waits else by_call(pid, called))


def _system_call(pid: int, number: int) -> list[str]:
    """The number of the system call in which a thread waits, and its arguments; or `running`; empty if the kernel does
    not say."""
    try:
        return Path(f"/proc/{pid}/task/{number}/syscall").read_text().split()
    except OSError:
        return []


def _is_wait_in(ranges: Collection[_Range], called: Sequence[str]) -> bool:
    """Whether a system call waits for a lock in this memory."""
    if len(called) < 2 or called[0] != _FUTEX:
        return False
    at = int(called[1], 16)
    return any(first <= at < end for first, end in ranges)


def _processor_time(pid: int, number: int) -> int:
    """How long the thread has run so far, in nanoseconds; 0 if the kernel does not say."""
    try:
        return int(Path(f"/proc/{pid}/task/{number}/schedstat").read_text().split()[0])
    except OSError:
        return 0


def _interpreter_data(pid: int) -> list[_Range]:
    """Where the static data of the interpreter is. The only lock there is that of the interpreter: locks of
    applications are in memory that was allocated."""
    try:
        program = str(Path(f"/proc/{pid}/exe").readlink())
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    found: list[_Range] = []
    follows = -1
    for line in lines:
        span, mode, *_, path = (*line.split(maxsplit=5), "")[:6]
        first, end = (int(each, 16) for each in span.split("-"))
        is_interpreter = path == program or _PYTHON.fullmatch(path)
        # What is 0 at first has no file, and follows what has one.
        if "w" in mode and (is_interpreter or (not path and first == follows)):
            found.append((first, end))
            follows = end
        else:
            follows = -1
    return found
