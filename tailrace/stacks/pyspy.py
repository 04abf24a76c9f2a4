"""The Python stacks of a process, which py-spy reads from its memory. The process does nothing for it and is not
stopped, so they can be read also while a thread holds the interpreter for ever.

Reading needs the permission to trace the process (ptrace(2)). Any thread; each call runs one process, for some 20 ms.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tailrace.stacks.waits import memory

# How long one read may take (seconds).
TIMEOUT: Final = 2.0
NO_PROGRAM: Final = "stacks need py-spy, which is not installed; `pip install 'tailrace[status]'`"
# A process that changes its frames meanwhile may be read wrongly, which py-spy notices.
_ATTEMPTS: Final = 3
# The kernel's number of a thread stands within so many bytes of its `pthread_t` (bytes).
_THREAD: Final = 2048


class Unreadable(Exception):
    """The stacks cannot be read; the text says why, and what to do."""


@dataclass(frozen=True)
class Frame:
    """A call: the qualified name of the function, where its source is, the line that runs; 0: unknown."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Stack:
    """A thread that has run Python code. name: `threading`'s; None: it has none. frames: the innermost first."""

    name: str | None
    holds_interpreter: bool
    frames: list[Frame]


def program() -> str | None:
    """The path of py-spy: the one that is installed for this interpreter, else one on PATH; None: there is none."""
    # Imported here because it would add 20 ms to every server start.
    import importlib.metadata

    try:
        files = importlib.metadata.files("py-spy") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for each in files:
        if each.name == "py-spy" and os.access(path := str(each.locate()), os.X_OK):
            return path
    return shutil.which("py-spy")


def read(pid: int, timeout: float = TIMEOUT) -> dict[int, Stack]:
    """The stacks by the kernel's number of the thread. timeout: in seconds. Raises Unreadable."""
    found = program()
    if found is None:
        raise Unreadable(NO_PROGRAM)
    for _ in range(_ATTEMPTS):
        try:
            done = subprocess.run(
                [found, "dump", "--nonblocking", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unreadable(f"py-spy did not read process {pid} within {timeout:g} s") from None
        except OSError as error:
            raise Unreadable(f"cannot run py-spy: {error.strerror}: {found}") from None
        if done.returncode == 0:
            return _stacks(pid, done.stdout)
    said = done.stderr.decode(errors="replace")
    if not Path(f"/proc/{pid}").exists():
        raise Unreadable(f"process {pid} has ended")
    if "permission denied" in said.lower() or "not permitted" in said.lower():
        raise Unreadable(_refused(pid))
    reason = next((line.strip() for line in said.splitlines() if line.strip()), f"exit status {done.returncode}")
    raise Unreadable(f"py-spy cannot read process {pid}: {reason.removeprefix('Error: ')}")


def _refused(pid: int) -> str:
    """Why the kernel refuses the read, and the remedy."""
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    if scope == 3:
        return (
            f"the kernel lets no process read process {pid}: kernel.yama.ptrace_scope is 3, which cannot be changed "
            "before the next boot"
        )
    yama = f" (kernel.yama.ptrace_scope is {scope})" if scope else ""
    return (
        f"no permission to read the memory of process {pid}{yama}: use its user or root, with CAP_SYS_PTRACE; if the "
        "server was started as root with --user, start it as that user instead"
    )


def _stacks(pid: int, printed: bytes) -> dict[int, Stack]:
    """What py-spy prints. Raises Unreadable."""
    try:
        return {
            number: Stack(
                each["thread_name"],
                bool(each["owns_gil"]),
                [Frame(frame["name"], frame["filename"], int(frame["line"])) for frame in each["frames"]],
            )
            for each in json.loads(printed)
            if (number := each["os_thread_id"] or _number(pid, each["thread_id"])) is not None
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"cannot understand the output of py-spy, which may be another version: {error!r}") from None


def _number(pid: int, ident: int) -> int | None:
    """The kernel's number of a thread, from `threading.get_ident()` in that process; None: unknown.

    Python 3.10 does not note it; the C library does, at the same place as in this process.
    """
    ours = memory("self", threading.get_ident(), _THREAD)
    wanted = threading.get_native_id().to_bytes(4, "little")
    offset = next((at for at in range(0, len(ours), 4) if ours[at : at + 4] == wanted), None)
    if offset is None:
        return None
    number = int.from_bytes(memory(str(pid), ident + offset, 4), "little")
    return number if Path(f"/proc/{pid}/task/{number}").exists() else None


def as_json(stack: Stack) -> list[Mapping[str, Any]]:
    """The frames for JSON."""
    return [{"function": each.function, "file": each.file, "line": each.line} for each in stack.frames]
