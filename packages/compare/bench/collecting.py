"""Garbage collection and response times: a Django application that keeps many objects, with each mode of `--gc`.

    python -m bench.collecting [--rounds 5]

The modes run in turn, a slice each; printed are the medians. The application keeps 300,000 objects and makes 20 cycles
a request, as forms and querysets do. Needs `wrk`, two processors and Django.
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.memory import await_page

APP: Final = """
from tailrace_compare.served.django_hello import app as django

HELD = [{"number": [number]} for number in range(150_000)]

class Node:
    pass

def app(environ, start_response):
    for _ in range(20):
        node = Node()
        node.itself = node
    return django(environ, start_response)
"""
MODES: Final = ("default", "freeze", "idle")
# Of one slice (seconds).
SLICE: Final = 5
UNITS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def milliseconds(said: str, share: str) -> float:
    """A percentile that wrk prints."""
    found = re.search(rf"^\s+{share}\s+([\d.]+)(us|ms|s)", said, re.MULTILINE)
    assert found is not None, said
    return float(found[1]) * UNITS[found[2]]


def slice_of(mode: str, folder: str, port: int) -> tuple[float, float, float, float]:
    """Requests per second; median, 99th percentile and maximum of the times in milliseconds."""
    url = f"http://127.0.0.1:{port}/"
    command = ["taskset", "-c", "0", sys.executable, "-m", "tailrace", "app:app", "--gc", mode, "--warmup", "/"]
    with subprocess.Popen(
        [*command, "--bind", f"127.0.0.1:{port}"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            await_page(url)
            wrk = ["taskset", "-c", "1", "wrk", "-t", "1", "-c", "4", "-d", f"{SLICE}s", "--latency", url]
            said = subprocess.run(wrk, capture_output=True, text=True, check=True).stdout
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    rate, most = (
        re.search(r"Requests/sec:\s+([\d.]+)", said),
        re.search(r"Latency\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)", said),
    )
    assert rate is not None and most is not None, said
    return float(rate[1]), milliseconds(said, "50%"), milliseconds(said, "99%"), float(most[1]) * UNITS[most[2]]


def main() -> None:
    """Prints a line for each mode."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="COUNT", help="slices of each mode (5)")
    rounds = parser.parse_args().rounds
    measured: dict[str, list[tuple[float, float, float, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(APP)
        for number in range(rounds):
            for mode in MODES:
                measured[mode].append(slice_of(mode, folder, 18_800 + 10 * number + MODES.index(mode)))
    for mode, slices in measured.items():
        rate, half, late, most = (statistics.median(each) for each in zip(*slices, strict=True))
        print(f"{mode:8} {rate:8,.0f}/s  50 % {half:.2f} ms  99 % {late:.2f} ms  longest {most:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
