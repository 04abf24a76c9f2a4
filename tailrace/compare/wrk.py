"""wrk as the load: one thread, a number of connections, a second or more."""

from __future__ import annotations

import re
import resource
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

UPLOAD = Path(__file__).with_name("upload.lua")
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Load:
    """What wrk counted: answers that were 2xx or 3xx each second, and everything that was not. In `seconds` it had
    `answers` of any status, and used `processor` seconds. Half of them took `p50` milliseconds or less, 99 % `p99`."""

    rate: float
    errors: int
    detail: str
    answers: int = 0
    seconds: float = 0.0
    processor: float = 0.0
    p50: float | None = None
    p99: float | None = None


def command(
    url: str,
    connections: int,
    seconds: float,
    core: int | str,
    close: bool = False,
    fields: tuple[str, ...] = (),
    upload: bool = False,
) -> list[str]:
    """The command line; `close` asks for a new connection each time. `fields`: further ones of each request. `upload`:
    each is a POST of `served.files.FORM_BYTES`."""
    line = ["taskset", "-c", str(core), "wrk", "-t1", "--latency", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
    all_fields = (*fields, "Connection: close") if close else fields
    line += ["-s", str(UPLOAD)] if upload else []
    return [*line, *(word for field in all_fields for word in ("-H", field)), url]


def run(
    url: str,
    connections: int,
    seconds: float,
    core: int | str,
    close: bool = False,
    fields: tuple[str, ...] = (),
    upload: bool = False,
) -> Load:
    line = command(url, connections, seconds, core, close, fields, upload)
    before = children_seconds()
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds + 30, check=False)
    if done.returncode:
        return Load(0.0, 1, (done.stderr or done.stdout).strip()[-200:])
    return replace(read(done.stdout), processor=children_seconds() - before)


def children_seconds() -> float:
    """Processor time of the clients that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(text: str) -> Load:
    """Understands wrk's report."""
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m)", text)
    if total is None:
        return Load(0.0, 1, "wrk reported nothing")
    requests, length = int(total.group(1)), float(total.group(2))
    length *= SECONDS[total.group(3)]
    found = dict.fromkeys(("connect", "read", "write", "timeout"), 0)
    sockets = re.search(r"Socket errors: (.+)", text)
    if sockets:
        found.update((word.split()[0], int(word.split()[1])) for word in sockets.group(1).split(", "))
    other = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    found["status"] = int(other.group(1)) if other else 0
    detail = ", ".join(f"{count} {kind}" for kind, count in found.items() if count)
    rate = (requests - found["status"]) / length if length else 0.0
    return Load(rate, sum(found.values()), detail, requests, length, p50=latency(text, 50), p99=latency(text, 99))


def latency(text: str, percent: int) -> float | None:
    """Milliseconds that this part of the answers took at most."""
    found = re.search(rf"^ *{percent}(?:\.0+)?% +([\d.]+)(us|ms|s|m)", text, re.MULTILINE)
    return round(1e3 * SECONDS[found[2]] * float(found[1]), 6) if found else None
