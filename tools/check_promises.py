"""Checks that every test that docs/internals/promises.md names exists, and in the file that it names.

python tools/check_promises.py

A code span is a Python test (`test_file.py::test_name` or `test_name`), or a Rust test if it is at least four words in
snake case.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PYTHON = re.compile(r"^[ \t]*(?:async )?def (test_\w+)", re.MULTILINE)
# Attributes and comments may stand between the mark and the function.
RUST = re.compile(r"#\[test\]\s*(?:(?:#\[.*\]|//.*)\s*)*fn (\w+)")
NAME = re.compile(r"`(?:(test_\w+\.py)::)?(test_\w+|[a-z]\w*_\w+_\w+_\w+)`")
FILE = re.compile(r"`(test_\w+\.py)\b")


def defined(root: Path) -> tuple[dict[str, set[str]], set[str]]:
    """The tests of the Python files with each base name, and all Rust tests."""
    python: dict[str, set[str]] = {}
    for path in (path for folder in ("tests", "packages") for path in (root / folder).rglob("test_*.py")):
        python.setdefault(path.name, set()).update(PYTHON.findall(path.read_text()))
    rust = {name for path in (root / "crates").rglob("*.rs") for name in RUST.findall(path.read_text())}
    return python, rust


def missing(text: str, python: dict[str, set[str]], rust: set[str]) -> list[str]:
    """What the document names and nobody has written, as the document names it."""
    found = {file for file in FILE.findall(text) if file not in python}
    everywhere = set().union(*python.values())
    for file, name in NAME.findall(text):
        if file:
            if file in python and name not in python[file]:
                found.add(f"{file}::{name}")
        elif name not in (everywhere if name.startswith("test_") else rust):
            found.add(name)
    return sorted(found)


def main(root: Path) -> int:
    """Prints one line a missing test; 1 when there is any."""
    document = root / "docs/internals/promises.md"
    text = document.read_text()
    names = missing(text, *defined(root))
    for name in names:
        print(f"{document.relative_to(root)}: there is no {name}")
    if not NAME.search(text):
        print(f"{document.relative_to(root)}: names no test")
    return 1 if names or not NAME.search(text) else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
