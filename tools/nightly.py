"""Runs the checks that are too slow for every change, for hours, on a machine that does nothing else.

    python tools/nightly.py                  # all of them, in this order
    python tools/nightly.py miri steady      # these alone

Each step logs to target/nightly/STEP.log. A failed step does not stop the others. What is tested is the last commit:
with uncommitted changes nothing starts. PYTHONS names the Pythons that run the tests besides that of .venv.
Exit status: 0 when all steps have succeeded, 1 otherwise.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from release import interpreter

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "target/nightly"
# Runs of the gate's Python tests beside builds.
STEADY_RUNS: Final = int(os.environ.get("STEADY_RUNS", "5"))
OTHER_FILES: Final = 5000

Step = Callable[[IO[bytes]], bool]


def make(*arguments: str) -> Step:
    """A step that makes targets."""
    return lambda log: _ran(log, ["make", *arguments])


def suite(python: str) -> Step:
    """A step that runs the Python tests of the gate on another Python, in a clone."""

    def step(log: IO[bytes]) -> bool:
        executable = interpreter(python)
        if executable is None:
            log.write(f"there is no Python {python}\n".encode())
            return False
        return _ran(log, ["make", "test-python", f"PYTHON={executable}"], directory=_clone(f"python{python}"))

    return step


def agents(log: IO[bytes]) -> bool:
    """Runs the tests with agents that are too large for every change, in a clone, because one changes pytest."""
    return _ran(log, ["make", "test-agents"], directory=_clone("agents"))


def steady(log: IO[bytes]) -> bool:
    """Runs the Python tests again and again, beside builds, in a temporary folder full of what others have left."""
    failed, builds = 0, RESULTS / "builds"
    builds.write_bytes(b"")
    # It ends with this process, whatever ends that.
    build = f"rm -rf target/ci; make -j2 build-ci || exit; echo >>{builds}"
    loop = f"while kill -0 {os.getpid()} 2>/dev/null; do {build}; done"
    # Short: the names of Unix sockets have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as temporary:
        for number in range(OTHER_FILES):
            Path(temporary, f"tailrace-{number}.sock").write_bytes(b"")
            Path(temporary, f"tmp{number:08x}").mkdir()
        other = subprocess.Popen(
            ["sh", "-c", loop],
            cwd=_clone("busy"),
            env=_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            for run in range(1, STEADY_RUNS + 1):
                log.write(f"--- run {run}\n".encode())
                log.flush()
                failed += not _ran(log, ["make", "test-python"], environment={"TMPDIR": temporary})
        finally:
            os.killpg(other.pid, signal.SIGKILL)
            other.wait()
    built = len(builds.read_bytes())
    log.write(f"{failed} of {STEADY_RUNS} runs failed, beside {built} builds\n".encode())
    return failed == 0 and built >= STEADY_RUNS


def steps() -> dict[str, Step]:
    """The steps in their order."""
    return {
        "gate": lambda log: _ran(log, [".ci/run"]),
        "loom": make("loom"),
        "agents": agents,
        "long-tests": make("test-python", "ARGS=-n 4 --dist worksteal --nightly"),
        "wheels": make("wheels"),
        **{f"python{python}": suite(python) for python in os.environ.get("PYTHONS", "").split()},
        "compatibility": make("compatibility"),
        "coverage-python": make("coverage-python"),
        "steady": steady,
        "miri": make("miri"),
        "fuzz": make("fuzz", "FUZZ_SECONDS=600"),
        "mutants": make("mutants"),
    }


def _environment(**more: str) -> dict[str, str]:
    # What the caller's own make has set is of another clone. On CI a missing tool is a failure.
    # Nor may a variable choose among the tests.
    own = ("MAKE", "MFLAGS", "VIRTUAL_ENV", "PYO3_PYTHON", "PYTHONS", "ARGS")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(own)}, "CI": "true", **more}


def _ran(log: IO[bytes], command: list[str], directory: Path = ROOT, environment: dict[str, str] | None = None) -> bool:
    done = subprocess.run(
        command,
        cwd=directory,
        env=_environment(**(environment or {})),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode == 0


def _clone(name: str) -> Path:
    """A fresh clone."""
    folder = RESULTS / name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def _run(name: str, step: Step) -> bool:
    path = RESULTS / f"{name}.log"
    begun = time.monotonic()
    print(f"{name:<16} ...", end="", flush=True)
    with path.open("wb") as log:
        try:
            passed = step(log)
        except (OSError, subprocess.SubprocessError) as error:
            log.write(f"{error}\n".encode())
            passed = False
    ended = "passed" if passed else f"FAILED: {path.relative_to(ROOT)}"
    print(f"\r{name:<16} {time.monotonic() - begun:6.0f} s  {ended}", flush=True)
    return passed


def main(chosen: list[str]) -> int:
    """Runs the steps; the exit status."""
    there_are = steps()
    unknown = [name for name in chosen if name not in there_are]
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if unknown:
        print(f"no such step: {', '.join(unknown)}; there are {', '.join(there_are)}", file=sys.stderr)
        return 1
    if changed.stdout:
        print(f"nightly tests the last commit; commit this first:\n{changed.stdout}", file=sys.stderr)
        return 1
    # So that what runs beside a step is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    RESULTS.mkdir(parents=True, exist_ok=True)
    passed = [_run(name, step) for name, step in there_are.items() if name in (chosen or there_are)]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
