"""Load on a server: by wrk if it is installed, otherwise by the client that ships with Tailrace. Both measure the same
within a few percent."""

from __future__ import annotations

import resource
import shutil
import subprocess
from dataclasses import replace

from tailrace.compare import own_client, wrk
from tailrace.compare.work import Load, Work


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def command(work: Work) -> list[str]:
    """The client's command line."""
    client = wrk.command(work) if has_wrk() else own_client.command(work)
    return ["taskset", "-c", str(work.core), *client]


def run(work: Work) -> Load:
    """Does the work. A client that fails is a load with an error, and what it said."""
    before = children_seconds()
    done = subprocess.run(command(work), capture_output=True, text=True, timeout=work.seconds + 30, check=False)
    if done.returncode:
        return Load(0.0, 1, (done.stderr or done.stdout).strip()[-200:])
    if not has_wrk():
        return own_client.read(done.stdout)
    return replace(wrk.read(done.stdout), processor=children_seconds() - before)


def children_seconds() -> float:
    """Processor time of the clients that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
