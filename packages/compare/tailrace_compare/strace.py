"""System calls of a running server, counted by strace."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
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
        # A file: a pipe that nobody reads would stop strace, and with it the server.
        self.told = report.with_suffix(".told")
        with self.told.open("wb") as told:
            self.process = subprocess.Popen(line, stderr=told, stdout=subprocess.DEVNULL)

    def __enter__(self) -> None:
        """Returns when strace has said of every process that it is attached."""
        end = time.perf_counter() + ATTACH_SECONDS
        while not self.awaited <= set(re.findall(r"Process (\d+) attached", self.told.read_text())):
            if self.process.poll() is not None or time.perf_counter() > end:
                self.process.kill()
                self.process.wait()
                raise subprocess.SubprocessError(f"strace: {self.told.read_text().strip()[-200:]}")
            time.sleep(0.01)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(ATTACH_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.report.exists():
            self.calls = read(self.report.read_text())


def hindrance() -> str:
    """Why strace may not attach to a process of this user that is not its child; empty if it may."""
    with tempfile.TemporaryDirectory(prefix="tailrace-compare-") as directory:
        tried = subprocess.Popen(["sleep", str(6 * ATTACH_SECONDS)])
        try:
            with Count([tried.pid], Path(directory) / "strace"):
                return ""
        except subprocess.SubprocessError as error:
            return str(error).splitlines()[-1]
        finally:
            tried.kill()
            tried.wait()


def read(text: str) -> dict[str, int]:
    """Understands the summary: calls by name, most first."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        # % time, seconds, usecs/call, calls, errors (may be empty), name
        if len(words) in (5, 6) and words[3].isdigit() and words[-1] != "total":
            found[words[-1]] = int(words[3])
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
