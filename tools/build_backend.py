"""The build backend (PEP 517, PEP 660): maturin, after a look at the system and the Rust that would build.

An old Rust fails with words about manifests that name neither what is missing nor the remedy; Debian 12 has cargo 1.65.
Also a command, `python tools/build_backend.py`, which only looks: tools/venv.sh calls it. The version that is needed is
the one of Cargo.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def needed() -> str:
    """`rust-version` of Cargo.toml."""
    found = re.search(r'^rust-version\s*=\s*"([\d.]+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return found[1] if found else "0"


def version_of(command: str) -> str | None:
    """What `COMMAND --version` tells; None when it is not there or tells nothing."""
    try:
        said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    found = re.search(r"\d+\.\d+(\.\d+)?", said)
    return found[0] if found else None


def is_old(version: str) -> bool:
    """Whether it is older than what is needed."""
    return _numbers(version) < _numbers(needed())


def problem() -> str:
    """Why the system, or the Rust that PATH names, cannot build, and what to do; empty when it can.

    Where there is no cargo at all, maturin fetches one or says so.
    """
    if sys.platform != "linux":
        return f"Tailrace runs on Linux, and this is {sys.platform}; docs/develop.md says how to develop in a container"
    for command in ("cargo", os.environ.get("RUSTC") or "rustc"):
        path = shutil.which(command)
        if path is None:
            continue
        version = version_of(path)
        if version is None or is_old(version):
            return (
                f"Tailrace needs Rust {needed()} or newer, and {path} "
                f"{'does not tell its version' if version is None else f'is {version}'}; {_remedy(path)}"
            )
    return ""


def _remedy(path: str) -> str:
    rustups = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo") / "bin"
    if Path(path).parent == rustups:
        return "`rustup update` brings a newer one"
    newer = version_of(str(rustups / "cargo"))
    if newer is not None and not is_old(newer):
        return f'{rustups} has {newer}: put it first, as in PATH="{rustups}:$PATH"'
    return f"https://rustup.rs installs a newer one into {rustups}, which must be first in PATH"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def __getattr__(name: str) -> Any:
    """Every hook is maturin's."""
    if name.startswith("_"):
        raise AttributeError(name)
    import maturin  # type: ignore[import-untyped]

    hook = getattr(maturin, name)
    if said := problem():
        sys.exit(said)
    return hook


if __name__ == "__main__":
    sys.exit(problem() or 0)
