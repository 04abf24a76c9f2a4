"""Whether a tree is ready for a release: one version everywhere, a changelog that ends with it, nothing uncommitted."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_ENTRY = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\S+))?$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def version_of(root: Path) -> str:
    """The version in Cargo.toml, which is that of the package."""
    found = re.search(r'^\[workspace\.package\]\nversion = "([^"]+)"', (root / "Cargo.toml").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("Cargo.toml: [workspace.package] has no version as its first key")
    return found[1]


def problems(root: Path) -> list[str]:
    """What stands against a release of the tree at `root`, one sentence each."""
    version = version_of(root)
    return [
        *_locks(root, version),
        *_packages(root, version),
        *_changelog((root / "CHANGELOG.md").read_text(), version),
        *_git(root, version),
    ]


def _locks(root: Path, version: str) -> list[str]:
    found = []
    for name in ("Cargo.lock", "fuzz/Cargo.lock"):
        locked = re.findall(r'^name = "(tailrace-\w+)"\nversion = "([^"]+)"', (root / name).read_text(), re.MULTILINE)
        found += [
            f"{name}: {crate} is {its}, Cargo.toml has {version}; `cargo update --workspace` changes it"
            for crate, its in locked
            if its != version and crate != "tailrace-fuzz"
        ]
    return found


def _packages(root: Path, version: str) -> Iterator[str]:
    """The packages beside the server have its version, and need that one."""
    for path in sorted((root / "packages").glob("*/pyproject.toml")):
        found = re.findall(r'^version = "([^"]+)"|"tailrace==([^"]+)"', path.read_text(), re.MULTILINE)
        if found != [(version, ""), ("", version)]:
            yield f"{path.relative_to(root)}: it is not {version} with `tailrace=={version}`, as Cargo.toml has it"


def _changelog(text: str, version: str) -> list[str]:
    entries = list(_ENTRY.finditer(text))
    if not entries or entries[0]["name"] != "Unreleased":
        return ["CHANGELOG.md: the first entry is not [Unreleased]"]
    if len(entries) == 1:
        return [f"CHANGELOG.md: there is no entry for {version}"]
    found = []
    if text[entries[0].end() : entries[1].start()].strip():
        found.append(f"CHANGELOG.md: [Unreleased] is not empty; move its lines to [{version}], or raise the version")
    if entries[1]["name"] != version:
        found.append(f"CHANGELOG.md: the newest version is {entries[1]['name']}, Cargo.toml has {version}")
    if not _DATE.fullmatch(entries[1]["date"] or ""):
        found.append(f"CHANGELOG.md: [{entries[1]['name']}] has no date, as in `## [{version}] - 2026-12-31`")
    return found


def _git(root: Path, version: str) -> list[str]:
    found = []
    if changed := _ask_git(root, "status", "--porcelain"):
        first = changed.splitlines()[0][3:]
        found.append(f"the working tree has changes, such as {first}; commit or remove them")
    tagged = _ask_git(root, "rev-parse", "--quiet", "--verify", f"refs/tags/v{version}^{{commit}}")
    if tagged and tagged != _ask_git(root, "rev-parse", "HEAD"):
        found.append(f"the tag v{version} names another commit; raise the version in Cargo.toml")
    return found


def _ask_git(root: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("a release is made in a checkout, by git, which is not installed") from None
    return ran.stdout.strip("\n")
