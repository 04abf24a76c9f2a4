"""Writes THIRD-PARTY.txt, the licences of the crates in the core; `--check` only says whether it is up to date.

    python tools/third_party.py [--check]

pyproject.toml puts the file into every wheel: these licences ask that their text goes with a copy of the program.
`cargo metadata` says which crates are linked on the platforms of wheels, and where their files are.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "THIRD-PARTY.txt"
_PLATFORMS: Final = tuple(
    f"{machine}-unknown-linux-{system}" for machine in ("x86_64", "aarch64") for system in ("gnu", "musl")
)
_NAMES: Final = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)\b.*", re.IGNORECASE)
# Where a crate lets one choose, MIT is chosen. These files are about the other choices.
_OTHERS: Final = re.compile(r"UNLICENSE|COPYING|COPYRIGHT|.*APACHE.*", re.IGNORECASE)
_HEAD: Final = """\
The core of Tailrace (tailrace/_tailrace*.so) contains the following software. Each licence is followed by its text.
tools/third_party.py writes this file.
"""


class Problem(Exception):
    """The licence of a crate cannot be given."""


def linked(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """The packages of others that are linked into the core: neither build scripts, tests nor procedural macros."""
    packages = {each["id"]: each for each in metadata["packages"]}
    nodes = {each["id"]: each for each in metadata["resolve"]["nodes"]}
    left = [each["id"] for each in metadata["packages"] if each["name"] == "tailrace-wsgi"]
    found: set[str] = set()
    while left:
        identity = left.pop()
        if identity in found or any("proc-macro" in target["kind"] for target in packages[identity]["targets"]):
            continue
        found.add(identity)
        for needed in nodes[identity]["deps"]:
            if any(each["kind"] is None for each in needed["dep_kinds"]):
                left.append(needed["pkg"])
    return [packages[each] for each in found if packages[each]["source"] is not None]


def texts(package: dict[str, Any], others: list[dict[str, Any]]) -> list[str]:
    """The texts of a package's licence. A package without files has those of another one from its repository.

    Raises Problem.
    """
    found = _files(package)
    if not found and package["repository"]:
        relatives = (each for each in others if each["repository"] == package["repository"])
        found = next(filter(None, map(_files, relatives)), [])
    if "MIT" in re.split(r" OR |/", package["license"] or ""):
        found = [each for each in found if not _OTHERS.fullmatch(each.name)] or found
    if not found:
        raise Problem(f"{package['name']} {package['version']} has no file with its licence")
    return ["\n".join(line.rstrip() for line in each.read_text().strip().splitlines()) for each in found]


def _files(package: dict[str, Any]) -> list[Path]:
    directory = Path(package["manifest_path"]).parent
    return sorted(each for each in directory.iterdir() if _NAMES.fullmatch(each.name) and each.is_file())


def document(packages: list[dict[str, Any]], licence: str) -> str:
    """The text of the file. licence: our own, whose words are those of the standard library's. Raises Problem."""
    named: dict[str, list[str]] = {}
    for package in sorted(packages, key=lambda each: (each["name"], each["version"])):
        line = f"{package['name']} {package['version']} ({package['license']}) {package['repository'] or ''}".rstrip()
        named.setdefault("\n\n".join(texts(package, packages)), []).append(line)
    permission = licence[licence.index("Permission is hereby granted") :].strip()
    standard = f"Copyright (c) The Rust Project Contributors\n\n{permission}"
    named.setdefault(standard, []).append(
        "The Rust standard library (MIT OR Apache-2.0) https://github.com/rust-lang/rust"
    )
    rule = "-" * 80
    return "\n".join([_HEAD, *(f"{rule}\n{chr(10).join(lines)}\n\n{text}\n" for text, lines in named.items())])


def fresh() -> str:
    """The text that the file should have. Raises Problem."""
    found = {}
    for platform in _PLATFORMS:
        command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", platform]
        said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        found.update({each["id"]: each for each in linked(json.loads(said))})
    return document(list(found.values()), (ROOT / "LICENSE").read_text())


def is_current() -> bool:
    """Whether the file has the crates of Cargo.lock. Raises Problem."""
    return FILE.is_file() and FILE.read_text() == fresh()


def main() -> int:
    """Writes or checks."""
    try:
        if "--check" not in sys.argv[1:]:
            FILE.write_text(fresh())
        elif not is_current():
            raise Problem(f"{FILE.name} does not follow Cargo.lock; run `.venv/bin/python tools/third_party.py`")
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
