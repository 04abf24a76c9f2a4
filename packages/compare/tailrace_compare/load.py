"""Load on a server, by wrk."""

from __future__ import annotations

import resource
import subprocess
from dataclasses import replace

from tailrace_compare import wrk
from tailrace_compare.work import Load, Work


def command(work: Work) -> list[str]:
    """The client's command line."""
    return ["taskset", "-c", str(work.core), *wrk.command(work)]


def run(work: Work) -> Load:
    """Does the work. A client that fails is a load with an error, and what it said."""
    before = children_seconds()
    done = subprocess.run(command(work), capture_output=True, text=True, timeout=work.seconds + 30, check=False)
    if done.returncode:
        return Load(0.0, 1, (done.stderr or done.stdout).strip()[-200:])
    return replace(wrk.read(done.stdout), processor=children_seconds() - before)


def children_seconds() -> float:
    """Processor time of the clients that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
