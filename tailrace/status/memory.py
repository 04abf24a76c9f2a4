"""How much memory a process uses, as the kernel tells. Any thread.

The proportional size (PSS: each shared page divided by the processes that share it) makes the kernel walk all pages of
the process, which delays it. So it is read again only after a while.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# How old a proportional size may be (seconds).
PSS_AGE: Final = 10.0
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Memory:
    """Bytes: resident, shared pages included; proportional. None: it cannot be read."""

    rss: int | None
    pss: int | None


class Readings:
    """Reads the memory of processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pss: dict[int, tuple[float, int | None]] = {}

    def read(self, pids: list[int], now: float, *, with_pss: bool = True) -> dict[int, Memory]:
        """The memory of these processes. Without the proportional size nothing delays them."""
        if not with_pss:
            return {pid: Memory(resident(pid), None) for pid in pids}
        with self._lock:
            self._pss = {
                pid: known if (known := self._pss.get(pid)) and now - known[0] < PSS_AGE else (now, _pss(pid))
                for pid in pids
            }
            return {pid: Memory(resident(pid), self._pss[pid][1]) for pid in pids}


def resident(pid: int) -> int | None:
    """Bytes that a process has in memory, shared pages included; None: it has ended, or they cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


def _pss(pid: int) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return None
