"""The threads of a process as the kernel shows them in /proc: numbers, names, and whether each runs or what it waits
for. Any thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The number of the system call in which a thread waits for a lock, by machine (syscalls(2)).
_FUTEX: Final = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")
_PYTHON: Final = re.compile(r".*/libpython3[^/]*\.so[^/]*")

_Range = tuple[int, int]


@dataclass(frozen=True)
class Task:
    """A thread. waits_for_interpreter: for the GIL; False also where the kernel does not tell."""

    name: str
    runs: bool
    waits_for_interpreter: bool


def tasks(pid: int) -> dict[int, Task]:
    """The threads of a process by number; none when it has ended."""
    try:
        numbers = sorted(int(each.name) for each in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return {}
    ranges = _interpreter_data(pid)
    return {number: found for number in numbers if (found := _task(pid, number, ranges)) is not None}


def _task(pid: int, number: int, ranges: Collection[_Range]) -> Task | None:
    """None: it has ended."""
    try:
        # The name is in parentheses and may contain any character.
        line = Path(f"/proc/{pid}/task/{number}/stat").read_text(errors="replace")
    except OSError:
        return None
    before, _, after = line.rpartition(") ")
    runs = after[:1] in ("R", "D")
    return Task(before.partition(" (")[2], runs, not runs and _waits_in(ranges, pid, number))


def _waits_in(ranges: Collection[_Range], pid: int, number: int) -> bool:
    """Whether the thread waits for a lock in this memory."""
    try:
        called = Path(f"/proc/{pid}/task/{number}/syscall").read_text().split()
    except OSError:
        return False
    if len(called) < 2 or called[0] != _FUTEX:
        return False
    at = int(called[1], 16)
    return any(first <= at < end for first, end in ranges)


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
