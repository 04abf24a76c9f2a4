"""curl as the client of one complete response."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

SECONDS = 15


@dataclass(frozen=True)
class Fetch:
    """One response: milliseconds without the connect, status and size; `failure` is empty if there is none."""

    ms: float
    status: int
    size: int
    failure: str


def command(url: str, socket: str | None = None, upload: Path | None = None, keep: bool = False) -> list[str]:
    """The command line; `keep` has the body printed."""
    line = ["curl", "--silent", "--show-error", "--max-time", str(SECONDS)]
    if not keep:
        line += ["--output", "/dev/null", "--write-out", "%{http_code} %{size_download} %{time_connect} %{time_total}"]
    if socket is not None:
        line += ["--unix-socket", socket]
    if upload is not None:
        # Without its question for leave (Expect), which some servers never answer.
        line += ["--data-binary", f"@{upload}", "--header", "Expect:", "--header", "Content-Type: application/x-bytes"]
    return [*line, url]


def fetch(url: str, size: int, socket: str | None = None, upload: Path | None = None) -> Fetch:
    """Fetches once; anything but 200 with `size` bytes is a failure."""
    done = subprocess.run(command(url, socket, upload), capture_output=True, text=True, check=False)
    return read(done.stdout, done.returncode, done.stderr, size)


def body(url: str, socket: str | None = None, upload: Path | None = None) -> bytes:
    """The body that arrives, whatever else is wrong."""
    return subprocess.run(command(url, socket, upload, keep=True), capture_output=True, check=False).stdout


def read(told: str, code: int, complaint: str, size: int) -> Fetch:
    """Understands what curl wrote."""
    words = told.split()
    if len(words) != 4:
        return Fetch(0.0, 0, 0, complaint.strip() or f"curl exited with {code}")
    status, received, connect, total = int(words[0]), int(words[1]), float(words[2]), float(words[3])
    failure = ""
    if code:
        failure = complaint.strip() or f"curl exited with {code}"
    elif status != 200:
        failure = f"status {status}"
    elif received != size:
        failure = f"{received:,} bytes instead of {size:,}"
    return Fetch(1000 * (total - connect), status, received, failure)
