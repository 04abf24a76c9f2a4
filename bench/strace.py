"""System calls of a running server, counted by strace."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

ATTACH_SECONDS = 10.0


class Count:
    """Counts from `with` to its end, in every thread and child of the processes; `calls` afterwards.

    Raises subprocess.SubprocessError when strace may not attach.
    """

    def __init__(self, pids: list[int], report: Path) -> None:
        self.report = report
        self.calls: dict[str, int] = {}
        line = ["strace", "-f", "-c", "-o", str(report)]
        for pid in pids:
            line += ["-p", str(pid)]
        self.awaited = {str(pid) for pid in pids}
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Count:
        """Returns when strace has said of every process that it is attached."""
        assert self.process.stderr is not None
        said = b""
        end = time.perf_counter() + ATTACH_SECONDS
        while self.awaited:
            ready, _, _ = select.select([self.process.stderr], [], [], max(0.0, end - time.perf_counter()))
            part = self.process.stderr.read1(65536) if ready else b""  # type: ignore[attr-defined]
            if not part:
                self.process.kill()
                self.process.wait()
                raise subprocess.SubprocessError(f"strace: {said.decode(errors='replace').strip()[-200:]}")
            said += part
            self.awaited -= set(re.findall(r"Process (\d+) attached", said.decode(errors="replace")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=ATTACH_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        if self.report.exists():
            self.calls = read(self.report.read_text())


def read(text: str) -> dict[str, int]:
    """Understands the summary: calls by name, most first."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        # % time, seconds, usecs/call, calls, errors (may be empty), name
        if len(words) in (5, 6) and words[3].isdigit() and words[-1] != "total":
            found[words[-1]] = int(words[3])
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
