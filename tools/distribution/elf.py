"""What `readelf` (binutils) says of a shared library."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def sections(library: Path) -> set[str]:
    """Names of its sections."""
    return set(re.findall(r"^\s*\[\s*\d+\]\s+(\S+)", _readelf("--sections", library), re.MULTILINE))


def probes(library: Path) -> set[str]:
    """Names of its USDT probes of the provider `tailrace`."""
    return set(re.findall(r"Provider: tailrace\s+Name: (\w+)", _readelf("--notes", library)))


def newest_glibc(library: Path) -> tuple[int, int]:
    """The newest version of glibc whose symbols it needs; (0, 0) if it needs none."""
    needed = re.findall(r"\bGLIBC_(\d+)\.(\d+)", _readelf("--version-info", library))
    return max(((int(major), int(minor)) for major, minor in needed), default=(0, 0))


def _readelf(option: str, library: Path) -> str:
    try:
        ran = subprocess.run(["readelf", "--wide", option, library], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("the checks of a wheel need readelf: sudo apt-get install binutils") from None
    return ran.stdout
