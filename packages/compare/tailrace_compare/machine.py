"""The facts of the machine that a figure depends on, and which cores do what."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
from pathlib import Path

# The server has one core and the load another; where there is only one, they share it, nothing is pinned, and the
# report says so.
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE = CORES[0]
LOAD_CORE = CORES[-1]


def facts() -> dict[str, str]:
    """What to print above every result."""
    return {
        "processor": processor(),
        "cores": f"{len(CORES)}; server on core {SERVER_CORE}, client on core {LOAD_CORE}"
        if len(CORES) > 1
        else "1, shared by server and client: the figures describe both together",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": first_line("wrk", "-v"),
        "curl": first_line("curl", "--version"),
        "load before": f"{os.getloadavg()[0]:.2f} (load average of the last minute)",
    }


def processor() -> str:
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        told = ""
    named = re.search(r"model name\s*:\s*(.+)", told)
    hypervisor = " (virtual machine)" if " hypervisor" in told else ""
    return (named.group(1) if named else platform.machine()) + hypervisor


def first_line(*command: str) -> str:
    """wrk and curl print their version first; wrk leaves with an error."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "missing"
    lines = (told.stdout or told.stderr).splitlines()
    return " ".join(lines[0].split()[:2]) if lines else "unknown version"


def idle_seconds(core: int) -> float:
    """What a core has been idle since it started."""
    found = re.search(rf"^cpu{core} (.+)", Path("/proc/stat").read_text(), re.MULTILINE)
    fields = found.group(1).split() if found else ["0"] * 5
    # Waiting for a disk is no work.
    return (int(fields[3]) + int(fields[4])) / os.sysconf("SC_CLK_TCK")


def pinned(core: int) -> list[str]:
    """What a command begins with that has one core, where there are several."""
    return ["taskset", "-c", str(core)] if len(CORES) > 1 else []


def everywhere() -> list[str]:
    """What a command begins with that has all cores; its parent may have one."""
    return ["taskset", "-c", ",".join(map(str, CORES))] if len(CORES) > 1 else []


def take_load_core() -> None:
    """Puts this process, and the clients it starts, on the load's core, with as many descriptors as it may have."""
    os.sched_setaffinity(0, {LOAD_CORE})
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
