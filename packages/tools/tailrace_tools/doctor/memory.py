"""`tailrace doctor --live --memory SECONDS`: which lines of an application allocate memory and keep it, by memray.

memray is attached to one worker, the largest, for some seconds. It needs `pip install memray` in the environment of the
server, and gdb or lldb with a Python before 3.14. Meanwhile the worker is slower. It cannot follow greenlets.

Thread: any.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tailrace.errors import TailraceError

# Lines that are shown, if they keep this many bytes, and callers of each.
_MAX_PLACES: Final = 10
_MIN_BYTES: Final = 100 << 10
_CALLERS: Final = 2
_DEPTH: Final = 30
# How much longer than asked memray may take to finish its file (seconds), and the time between two looks.
_GRACE: Final = 60.0
# How long memray may take to attach (seconds).
_ATTACHING: Final = 30.0
# How long its debugger may take to leave the worker.
_DETACHING: Final = 10.0
_LOOK: Final = 0.5
_MIB: Final = 1 << 20


class MemoryUnknown(TailraceError):
    """The memory of the worker cannot be examined."""


def examine(found: Mapping[str, Any], seconds: float) -> str:
    """Attaches memray, and says so on standard error; returns text for a terminal. found: the document of
    `/status.json`.

    Raises MemoryUnknown."""
    if importlib.util.find_spec("memray") is None:
        raise MemoryUnknown("--memory needs memray: `pip install memray` in the environment of the server")
    workers = [each for each in found["workers"] if each["pid"]]
    if not workers:
        raise MemoryUnknown("no worker is running")
    worker = max(workers, key=lambda each: each["rss_bytes"] or 0)
    pid = worker["pid"]
    if not Path(f"/proc/{pid}").exists():
        raise MemoryUnknown(f"--memory must run on the machine of the server: there is no process {pid} here")
    print(f"attaching memray to process {pid} for {seconds:g} s, which slows it down ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="tailrace-memory-") as folder:
        # The worker writes it, which may run as another user.
        Path(folder).chmod(0o777)
        file = Path(folder) / "allocations.bin"
        _attach(pid, file, seconds)
        time.sleep(seconds)
        records = _leaked(file, time.monotonic() + _GRACE)
    return _text(pid, seconds, records)


def _attach(pid: int, file: Path, seconds: float) -> None:
    command = [sys.executable, "-m", "memray", "attach", "--duration", str(max(1, round(seconds))), "-o", str(file)]
    # In a group of its own, with the debugger that it starts.
    started = subprocess.Popen(
        [*command, str(pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        stdout, stderr = started.communicate(timeout=_ATTACHING)
    except BaseException as error:
        _detach(started)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise MemoryUnknown(
            f"memray could not attach to process {pid} within {_ATTACHING:g} s: the worker must run Python code "
            "meanwhile, so send it requests"
        ) from None
    said = stdout + stderr
    if started.returncode != 0 or "tracking PID" not in said:
        lines = said.strip().splitlines() or ["no reason given"]
        raise MemoryUnknown(f"memray cannot attach to process {pid}: {lines[-1].strip()}")


def _detach(started: subprocess.Popen[str]) -> None:
    """Has the debugger remove its breakpoints, and ends it: one that is killed leaves them in the worker, which dies at
    the first of them."""
    with contextlib.suppress(OSError):
        for debugger in Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split():
            os.kill(int(debugger), signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(_DETACHING)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.communicate()


def _leaked(file: Path, until: float) -> list[Any]:
    """What was allocated and not freed, once memray has completed its file."""
    import memray

    size = -1
    while True:
        time.sleep(_LOOK)
        # memray complains about a file that is not complete.
        size, before = file.stat().st_size if file.exists() else -1, size
        try:
            if size != before or size < 0:
                raise OSError
            with memray.FileReader(file) as reader:
                if reader.metadata.end_time.timestamp() > reader.metadata.start_time.timestamp():
                    return list(reader.get_leaked_allocation_records(merge_threads=True))
        except (OSError, ValueError, OverflowError):
            pass
        if time.monotonic() > until:
            raise MemoryUnknown(
                "memray has no complete file; the worker may have ended, or runs greenlets, which memray cannot follow"
            )


def _text(pid: int, seconds: float, records: list[Any]) -> str:
    """The lines that keep most memory."""
    by_place: dict[tuple[tuple[str, str, int], ...], list[int]] = {}
    for record in records:
        stack = tuple(record.stack_trace(max_stacks=_DEPTH))
        shown = _shown(stack)
        if shown:
            sums = by_place.setdefault(shown, [0, 0])
            sums[0] += record.size
            sums[1] += record.n_allocations
    total = sum(size for size, _ in by_place.values())
    lines = [f"Worker {pid}: {total / _MIB:.1f} MiB were allocated in {seconds:g} s and not freed."]
    places = sorted(by_place.items(), key=lambda each: -each[1][0])[:_MAX_PLACES]
    for place, (size, number) in [each for each in places if each[1][0] >= _MIN_BYTES]:
        (function, path, line), *callers = place
        lines.append(
            f"\n{size / _MIB:8.1f} MiB  {path}:{line} in {function} ({number:,} allocation{'s' * (number != 1)})"
        )
        lines += [f"              called at {path}:{line} in {function}" for function, path, line in callers]
    lines.append("\nCaches that were filled meanwhile are included. Repeat it: only a leak stays at the top.")
    return "\n".join(lines)


def _shown(stack: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    """The innermost frame of the application and its callers; if there is none, the innermost frame."""
    own = [frame for frame in stack if not _is_library(frame[1])]
    # A comprehension has a frame of its own before Python 3.12, on the same line.
    own = [frame for frame in own if not frame[0].startswith("<") or frame[0] == "<module>"] or own
    return tuple(own[: 1 + _CALLERS]) or stack[:1]


def _is_library(path: str) -> bool:
    return "site-packages" in path or "/lib/python3" in path or path.startswith("<")
