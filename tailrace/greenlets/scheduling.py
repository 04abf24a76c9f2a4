"""What the kernel reports about a thread: whether it runs, and how long it has waited for a processor. See proc(5).

Thread: any.
"""

from __future__ import annotations

import os
from typing import Final

_TICK: Final = os.sysconf("SC_CLK_TCK")


def of_thread(native: int) -> tuple[bool, float]:
    """Whether a thread of this process is runnable, and for how many seconds it has run so far; (False, 0.0) when it
    has ended. native: its `threading.get_native_id()`. A runnable thread runs, or waits for nothing but a processor."""
    try:
        with open(f"/proc/self/task/{native}/stat", "rb") as file:
            # The fields follow the name, which may contain anything, so the last parenthesis counts.
            state, *fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return False, 0.0
    return state == b"R", (int(fields[10]) + int(fields[11])) / _TICK


def delay() -> float:
    """Seconds that the calling thread has waited for a processor so far; 0 where the kernel does not count them."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
