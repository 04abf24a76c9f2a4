"""Profile-guided optimization: compiles an instrumented core, has tools/training.py use it, and keeps the counts.

    python tools/profile_guided.py release      # for this profile of cargo; prints CARGO_ENCODED_RUSTFLAGS

rustc lays the core out by the counts: what a request runs lies together, and what it does not is out of the way. When
an application has used the caches of the processor in between, that halves the time that the core takes. The counts
belong to a compiler, a profile of cargo and a source: tools/release.py has them made for the wheels, and `make build`
for what the comparison measures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_FLAGS: Final = "CARGO_ENCODED_RUSTFLAGS"


class Problem(Exception):
    """No counts can be made; the message says what to do."""


def flags(counts: Path) -> list[str]:
    """What tells rustc to use the counts, and to say for which functions it has none."""
    return [f"-Cprofile-use={counts}", "-Cllvm-args=-pgo-warn-missing-function"]


def missing(said: str) -> int:
    """For how many functions rustc says that it has no counts, not even that they were never called.

    Names of functions depend on how the core is compiled. When they are other names, the counts have no effect.
    """
    return said.count("no profile data available for function")


def counts(profile: str, environ: dict[str, str], options: Sequence[str] = ()) -> Path:
    """Makes the file of counts for builds with this profile of cargo.

    options: those of maturin that are part of the names of functions. The flags for rustc in `environ` are kept.
    Raises Problem.
    """
    tool = _run(["tools/llvm.sh", "profile-guided optimization"]).strip() + "/llvm-profdata"
    folder = ROOT / "target/profile-guided" / profile
    shutil.rmtree(folder, ignore_errors=True)
    raw, installed = folder / "raw", folder / "installed"
    given = environ.get(_FLAGS)
    instrumented = {**environ, _FLAGS: "\x1f".join(([given] if given else []) + [f"-Cprofile-generate={raw}"])}
    build = [str(Path(sys.executable).parent / "maturin"), "build", "--quiet", "--locked", "--profile", profile]
    build += ["--target-dir", str(folder.parent / "target"), "--out", str(folder), "--interpreter", sys.executable]
    _run([*build, *options], instrumented)
    # Without a target, what compiles and generates code is instrumented, too.
    shutil.rmtree(raw, ignore_errors=True)
    (wheel,) = folder.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    _run(pip, environ)
    training = {**environ, "PYTHONPATH": str(installed), "LLVM_PROFILE_FILE": str(raw / "%p.profraw")}
    _run([sys.executable, str(ROOT / "tools/training.py")], training)
    merged = folder / "counts.profdata"
    _run([tool, "merge", "--output", str(merged), str(raw)], environ)
    return merged


def _run(command: list[str], environ: dict[str, str] | None = None) -> str:
    """The standard output of a command."""
    ran = subprocess.run(command, env=environ, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ran.returncode:
        raise Problem(f"{Path(command[0]).name} failed with status {ran.returncode}: {ran.stderr.strip()}")
    return ran.stdout


def main() -> int:
    """Makes the counts for the profile on the command line; the exit status."""
    try:
        environ = {name: value for name, value in os.environ.items() if name not in (_FLAGS, "RUSTFLAGS")}
        print("\x1f".join(flags(counts(sys.argv[1], environ))))
    except Problem as problem:
        print(f"profile_guided.py: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
