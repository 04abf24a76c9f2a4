"""How much of the machine this process may use: CPUs, and memory as limited by control groups (cgroups(7)).

A limit of a cgroup also applies to the cgroups below it, so the smallest limit among a process's cgroup and its
ancestors counts. Versions 1 and 2 are read, also side by side. Without cgroups, and for a file that does not exist,
there is no limit. In a container, `/proc` and the mounts show the part of the hierarchy that the container may see.

Any thread may call these functions. They read a few small files and never raise.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

# Version 1 writes "no limit" as the largest multiple of the page size below 2^63; pages have up to 64 KiB.
_NO_LIMIT: Final = (1 << 63) - (1 << 16)
# How mountinfo writes a space and a few other characters in a path (proc_pid_mountinfo(5)).
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
# The cache of files, which the kernel drops before it kills a process. Names with `total_` are of version 1, and
# include the cgroups below.
_CACHES: Final = (("total_inactive_file", "total_active_file"), ("inactive_file", "active_file"))


class Machine(NamedTuple):
    """What this process may use.

    affinity: the number of CPUs that it may run on. The kernel keeps the affinity mask within the cpusets of all
        ancestors, so their files need not be read.
    quota: the CPU time that it may use, in CPUs; None: no quota.
    memory: the limit in bytes; None: no limit. accounts: the directory of the cgroup with this limit.
    fault: the file that could not be read, and why, without a full stop; empty if there is none.
    """

    affinity: int
    quota: float | None = None
    memory: int | None = None
    accounts: Path | None = None
    fault: str = ""

    @property
    def cpus(self) -> int:
        """The number of processes that can use all of the CPU time: a quota of 1.5 CPUs counts as 2."""
        return self.affinity if self.quota is None else max(1, min(self.affinity, math.ceil(self.quota)))

    @property
    def cpus_shown(self) -> str:
        """CPUs for people: `1.5 CPUs (cgroup quota)`."""
        has_quota = self.quota is not None and self.quota < self.affinity
        count = self.quota if has_quota else self.affinity
        return f"{count:.3g} {'CPU' if count == 1 else 'CPUs'}{' (cgroup quota)' * has_quota}"

    @property
    def memory_shown(self) -> str:
        """The memory for people: `512 MiB (cgroup limit)`; empty without a limit."""
        return "" if self.memory is None else f"{self.memory / (1 << 20):.0f} MiB (cgroup limit)"


def machine(root: Path = Path("/")) -> Machine:
    """What this process may use now. root: the directory that stands for `/`."""
    quotas: list[float] = []
    memories: list[tuple[int, Path]] = []
    faults: list[str] = []

    def read(file: Path, limit: Callable[[Path], float | None]) -> float | None:
        try:
            return limit(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            faults.append(f"cannot read {file}: {error.strerror}")
        except (ValueError, OverflowError):
            faults.append(f"cannot understand {file}")
        return None

    for directory in _directories(root):
        for name, limit in _QUOTAS.items():
            if (quota := read(directory / name, limit)) is not None:
                quotas.append(quota)
        for name in _MEMORIES:
            if (size := read(directory / name, _bytes)) is not None:
                memories.append((int(size), directory))
    memory, accounts = min(memories, default=(None, None))
    return Machine(
        len(os.sched_getaffinity(0)), min(quotas, default=None), memory, accounts, faults[0] if faults else ""
    )


def memory_in_use(accounts: Path) -> int | None:
    """Bytes in use by a cgroup, without the cache of files; None if they cannot be read. accounts: as in `Machine`."""
    for name in ("memory.current", "memory.usage_in_bytes"):
        try:
            used = int(_text(accounts / name))
            rows = [line.split() for line in _text(accounts / "memory.stat").splitlines()]
            figures = {row[0]: int(row[1]) for row in rows if len(row) == 2}
        except (OSError, ValueError):
            continue
        caches = next((names for names in _CACHES if names[0] in figures), ())
        return max(0, used - sum(figures.get(name, 0) for name in caches))
    return None


# The files of limits


def _cpu_max(file: Path) -> float | None:
    """CPUs by `cpu.max` of version 2: quota and period, in microseconds."""
    quota, period = _text(file).split()
    return None if quota == "max" else _cpus(int(quota), int(period))


def _cfs_quota(file: Path) -> float | None:
    """The quota of version 1, which has the period in a second file, and -1 for no quota."""
    quota = int(_text(file))
    return None if quota == -1 else _cpus(quota, int(_text(file.with_name("cpu.cfs_period_us"))))


def _cpus(quota: int, period: int) -> float:
    if quota <= 0 or period <= 0:
        raise ValueError
    return quota / period


def _bytes(file: Path) -> int | None:
    """The limit in a file of either version."""
    text = _text(file).strip()
    size = _NO_LIMIT if text == "max" else int(text)
    if size < 0:
        raise ValueError
    return None if size >= _NO_LIMIT else size


_QUOTAS: Final = {"cpu.max": _cpu_max, "cpu.cfs_quota_us": _cfs_quota}
# Above memory.high, the kernel slows the processes down until they hardly run, so it is a limit, too.
_MEMORIES: Final = ("memory.max", "memory.high", "memory.limit_in_bytes")


# Where they are


def _directories(root: Path) -> Iterator[Path]:
    """The cgroups of this process that may limit CPU or memory, and their ancestors as far as they are visible."""
    try:
        hierarchies = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines()]
        mounts = [*_mounts(_text(root / "proc/self/mountinfo"))]
    except OSError:
        return
    for row in hierarchies:
        if len(row) != 3:
            continue
        number, controllers, path = row
        wanted = {"cpu", "memory"}.intersection(controllers.split(","))
        if not wanted and number != "0":
            continue
        fitting = [each for each in mounts if (wanted & each.controllers if wanted else each.is_unified)]
        if not fitting:
            continue
        # The mount that shows the most ancestors. If none shows the cgroup, what is mounted is the container's.
        showing = sorted((each for each in fitting if each.shows(path)), key=lambda each: len(each.root))
        mount = (showing or fitting)[0]
        top = root / mount.point.lstrip("/")
        own = top / path[len(mount.root.rstrip("/")) :].strip("/") if showing else top
        yield own
        while own != top:
            own = own.parent
            yield own


class _Mount(NamedTuple):
    """A mounted hierarchy, or a part of it. root: the cgroup that is at the mount point. controllers: those of version
    1."""

    root: str
    point: str
    is_unified: bool
    controllers: frozenset[str]

    def shows(self, path: str) -> bool:
        """Whether this cgroup is below the mount point. One with `..` is outside the process's cgroup namespace."""
        if ".." in path.split("/"):
            return False
        return self.root == "/" or path == self.root or path.startswith(f"{self.root}/")


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) < 5 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        root, point = (_OCTAL.sub(lambda found: chr(int(found[1], 8)), field) for field in left[3:5])
        yield _Mount(root, point, right[0] == "cgroup2", frozenset(right[2].split(",")))


def _text(file: Path) -> str:
    return file.read_text("utf-8", "surrogateescape")
