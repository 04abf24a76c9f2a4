"""What a waiting thread waits for, in one word: by the system call in which it waits, and by its innermost Python call
where that tells more. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# The numbers of system calls (syscalls(2)), by machine: the call, and its number on x86_64 and on aarch64.
_NUMBERS: Final = {
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "connect": (42, 203),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "sendmmsg": (307, 269),
    "recvmmsg": (299, 243),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "futex": (202, 98),
}
_MACHINE: Final = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
_CALLS: Final[dict[str, str]] = (
    {} if _MACHINE is None else {str(pair[_MACHINE]): name for name, pair in _NUMBERS.items()}
)
# What each waits for. The first argument of `_BY_DESCRIPTOR` is a file descriptor.
_FOR: Final = {
    "nanosleep": "sleep",
    "clock_nanosleep": "sleep",
    "futex": "lock",
    "epoll_wait": "events",
    "epoll_pwait": "events",
    "epoll_pwait2": "events",
    "wait4": "process",
    "waitid": "process",
    "fcntl": "file lock",
    "flock": "file lock",
    "fsync": "disk",
    "fdatasync": "disk",
    **dict.fromkeys(("connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg"), "socket"),
    **dict.fromkeys(("sendmmsg", "recvmmsg"), "socket"),
}
_BY_DESCRIPTOR: Final = ("read", "write", "readv", "writev")
# Kinds of descriptors, by how the link in /proc/PID/fd begins.
_KINDS: Final = {"socket:": "socket", "pipe:": "pipe", "anon_inode:": "events", "/dev/pts/": "terminal", "/": "file"}
# Waits for a lock that have a better name, by the end of the file's path and the end of the function's name.
_LOCKS: Final = (
    ("/queue.py", "get", "queue"),
    ("/queue.py", "put", "queue"),
    ("/concurrent/futures/_base.py", "result", "future"),
    ("/threading.py", "join", "thread"),
)
# Innermost calls that are looked at for these: `Queue.get` calls `Condition.wait`.
_DEPTH: Final = 5


def by_call(pid: int, called: Sequence[str]) -> str | None:
    """By the system call of a thread, as /proc/PID/task/TID/syscall has it. None: unknown."""
    name = _CALLS.get(called[0]) if len(called) > 3 else None
    if name is None:
        return None
    first, second = (int(each, 16) for each in called[1:3])
    if name in _BY_DESCRIPTOR:
        return _kind(pid, first)
    if name in ("poll", "ppoll"):
        if not second:
            return "sleep"
        # The first member of the first `struct pollfd`.
        descriptor = memory(str(pid), first, 4)
        return _kind(pid, int.from_bytes(descriptor, "little", signed=True)) if descriptor else None
    if name in ("select", "pselect6"):
        # Python before 3.11 sleeps by it.
        return "events" if first else "sleep"
    return _FOR[name]


def by_stack(found: str | None, frames: Sequence[Mapping[str, object]]) -> str | None:
    """What was found, or what the innermost calls say of a lock. frames: as in `/stacks`."""
    if found != "lock":
        return found
    for frame in frames[:_DEPTH]:
        for file, function, better in _LOCKS:
            if str(frame["file"]).endswith(file) and str(frame["function"]).rpartition(".")[2] == function:
                return better
    return found


def _kind(pid: int, descriptor: int) -> str | None:
    try:
        link = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return None
    return next((kind for begin, kind in _KINDS.items() if link.startswith(begin)), None)


def memory(process: str, at: int, length: int) -> bytes:
    """Up to so many bytes of a process; none when they cannot be read. process: its number, or `self`."""
    try:
        with open(f"/proc/{process}/mem", "rb", 0) as file:
            return os.pread(file.fileno(), length, at)
    except (OSError, OverflowError):
        return b""
