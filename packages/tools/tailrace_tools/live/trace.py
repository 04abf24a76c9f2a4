"""`tailrace trace`: runs bpftrace with a script for the probes of running servers, which it tells where the probes are.

The scripts are in `bpftrace/`; each says what it shows, and what its parameters are. docs/doctor.md has the probes.
Thread: any.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
from pathlib import Path
from typing import Final, NoReturn

from tailrace.errors import TailraceError

# What each script shows. Those of OVER print what takes at least so long.
SCRIPTS: Final = {
    "latency": "request times: queued, in the application, sending",
    "calls": "system calls per response",
    "blocks": "late blocks of responses",
    "gil": "threads that hold the interpreter, and threads that wait for it",
}
OVER: Final = ("blocks", "gil")
_FOLDER: Final = Path(__file__).with_name("bpftrace")
_EXTENSION: Final = re.compile(r"_tailrace\..*\.so$")
_LIBRARY: Final = re.compile(r"libpython3[^/]*\.so[.\d]*$")
# The functions of CPython that take and release the GIL have no exported names, and a stripped Python has no others.
EXACT: Final = ("take_gil", "drop_gil")
EXPORTED: Final = ("PyEval_RestoreThread", "PyEval_SaveThread")
_KERNEL: Final = {
    "/sys/bus/event_source/devices/uprobe/format/ref_ctr_offset": "uprobes (CONFIG_UPROBE_EVENTS, from Linux 4.20)",
    "/sys/kernel/btf/vmlinux": "descriptions of its types (CONFIG_DEBUG_INFO_BTF)",
    "/sys/kernel/tracing/events/raw_syscalls": "tracepoints (CONFIG_FTRACE_SYSCALLS, and a mounted tracefs)",
}


class TraceError(TailraceError):
    """The script cannot be run."""


def command(script: str, pid: int | None, over: float) -> list[str]:
    """The command that runs one of SCRIPTS for this process and its children; None: all of this installation.

    over: seconds, for the scripts of OVER. Raises TraceError.
    """
    extension = _mapped(pid, _EXTENSION)
    if extension is None:
        raise TraceError(f"process {pid} is not a Tailrace server: it has not loaded the module `_tailrace`")
    given = [extension, str(pid or 0)]
    if script in OVER:
        given.append(str(max(1, round(over * 1000))))
    if script == "gil":
        python = _mapped(pid, _LIBRARY) or _seen_from_here(pid, os.readlink(f"/proc/{pid or 'self'}/exe"))
        given += [python, *(EXACT if _has_symbol(python, EXACT[0]) else EXPORTED)]
    return ["bpftrace", "-B", "line", str(_FOLDER / f"{script}.bt"), *given]


def run(script: str, pid: int | None, over: float) -> NoReturn:
    """Becomes bpftrace with that script, until SIGINT. Raises TraceError with one line that says what is missing."""
    if reason := missing():
        raise TraceError(reason)
    line = command(script, pid, over)
    os.execvp(line[0], line)


def missing() -> str | None:
    """What bpftrace needs here and does not have, with the remedy; None: nothing."""
    if shutil.which("bpftrace") is None:
        return "bpftrace is not installed: `apt install bpftrace` (Debian, Ubuntu) or `dnf install bpftrace` (Fedora)"
    if os.geteuid() != 0:
        return "bpftrace needs root: run the command with `sudo` and the full path of `tailrace`"
    for path, what in _KERNEL.items():
        if not Path(path).exists():
            return (
                f"the kernel lacks {what}: {path} does not exist; in a container, run the command on the host with "
                "--pid"
            )
    return None


def _mapped(pid: int | None, name: re.Pattern[str]) -> str | None:
    """The file of that name that the process has loaded. Raises TraceError."""
    try:
        maps = Path(f"/proc/{pid or 'self'}/maps").read_text(errors="surrogateescape")
    except FileNotFoundError:
        raise TraceError(f"process {pid} does not exist") from None
    except PermissionError:
        raise TraceError(f"process {pid} belongs to another user: run the command with `sudo`") from None
    for line in maps.splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        current = path.removesuffix(" (deleted)")
        if name.search(current):
            if current != path:
                raise TraceError(f"{current} is not the file that process {pid} loaded: restart the server")
            return _seen_from_here(pid, path)
    return None


def _seen_from_here(pid: int | None, path: str) -> str:
    """The path of the file outside of the container of the process."""
    root = f"/proc/{pid or 'self'}/root"
    try:
        is_same = os.path.samefile(root + path, path)
    except OSError:
        is_same = False
    return path if is_same else root + path


def _has_symbol(path: str, name: str) -> bool:
    """Whether an ELF file has a symbol of that name, exported or not."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"\0" + name.encode() + b"\0") >= 0
