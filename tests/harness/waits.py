"""How long the threads of a process go on waiting if nothing happens, as the kernel knows it."""

import math
import platform
import struct
import time
from pathlib import Path

# Number of the call: which argument limits it, and how. `ms`: milliseconds, of which those below zero are no limit.
# `in`, `at`: the address of a timespec, from now or of the monotonic clock; `sleep`: as the flag before it says. No
# address is no limit.
X86_64 = {7: (2, "ms"), 35: (0, "in"), 202: (3, "at"), 230: (2, "sleep"), 232: (3, "ms"), 270: (4, "in")}
X86_64 |= {271: (2, "in"), 281: (3, "ms"), 441: (3, "in")}
AARCH64 = {
    22: (3, "ms"),
    72: (4, "in"),
    73: (2, "in"),
    98: (3, "at"),
    101: (0, "in"),
    115: (2, "sleep"),
    441: (3, "in"),
}
CALLS = {"x86_64": X86_64, "aarch64": AARCH64}[platform.machine()]


def until_it_wakes(pid: int) -> float:
    """The seconds until the first of its threads wakes by itself; 0 while one runs, inf without any limit."""
    return min(_limit(pid, task) for task in Path(f"/proc/{pid}/task").iterdir())


def _limit(pid: int, task: Path) -> float:
    try:
        call, *arguments = (task / "syscall").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        # The thread has ended.
        return math.inf
    if call == "running":
        return 0.0
    at, unit = CALLS.get(int(call), (0, ""))
    if not unit:
        # It waits for a file or a process.
        return math.inf
    value = int(arguments[at], 16)
    if unit == "ms":
        (milliseconds,) = struct.unpack("i", struct.pack("I", value & 0xFFFFFFFF))
        return milliseconds / 1000 if milliseconds >= 0 else math.inf
    if value == 0:
        return math.inf
    if unit == "sleep":
        unit = "at" if int(arguments[at - 1], 16) & 1 else "in"
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(value)
        seconds, nanoseconds = struct.unpack("qq", memory.read(16))
    return seconds + nanoseconds / 1e9 - (time.monotonic() if unit == "at" else 0.0)
