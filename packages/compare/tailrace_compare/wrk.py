"""wrk as the client: one thread, a number of connections, a second or more."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace_compare.work import Load, Work, counted

SCRIPTS = Path(__file__).parent
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


def command(work: Work) -> list[str]:
    """The command line; wrk counts whole seconds."""
    line = ["wrk", "-t1", "--latency", f"-c{work.connections}", f"-d{max(1, round(work.seconds))}s"]
    line += ["-s", str(SCRIPTS / work.script)] if work.script else []
    return [*line, *(word for field in work.all_fields() for word in ("-H", field)), work.url]


def read(text: str) -> Load:
    """Understands wrk's report."""
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m)", text)
    if total is None:
        return Load(0.0, 1, "wrk reported nothing")
    found = dict.fromkeys(("connect", "read", "write", "timeout"), 0)
    sockets = re.search(r"Socket errors: (.+)", text)
    if sockets:
        found.update((word.split()[0], int(word.split()[1])) for word in sockets.group(1).split(", "))
    other = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    found["status"] = int(other.group(1)) if other else 0
    seconds = float(total.group(2)) * SECONDS[total.group(3)]
    return counted(int(total.group(1)), seconds, found, latency(text, 50), latency(text, 99), mean(text))


def latency(text: str, percent: int) -> float | None:
    """A percentile, in milliseconds."""
    found = re.search(rf"^ *{percent}(?:\.0+)?% +([\d.]+)(us|ms|s|m)", text, re.MULTILINE)
    return round(1e3 * SECONDS[found[2]] * float(found[1]), 6) if found else None


def mean(text: str) -> float | None:
    """The mean latency in milliseconds."""
    found = re.search(r"^ *Latency +([\d.]+)(us|ms|s|m)\b", text, re.MULTILINE)
    return round(1e3 * SECONDS[found[2]] * float(found[1]), 6) if found else None
