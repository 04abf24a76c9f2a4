"""The floor of a generator: how long Python needs to iterate it, without any server.

python -m tailrace_compare.floor word_blocks
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from tailrace_compare import machine
from tailrace_compare.peers import commands
from tailrace_compare.served import shapes

TIMES = 7


def iterate(name: str) -> float:
    """Milliseconds, the median of several passes."""
    taken = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        for _block in getattr(shapes, name)():
            pass
        taken.append(1000 * (time.perf_counter() - begun))
    return median(taken)


def measure(name: str) -> float:
    """Runs `iterate` in a process of its own, on the server's core."""
    line = ["taskset", "-c", str(machine.SERVER_CORE), str(commands() / "python"), "-m", "tailrace_compare.floor", name]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    print(iterate(sys.argv[1]))
