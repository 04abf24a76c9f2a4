"""Checks that every test that docs/internals/promises.md names exists.

python tools/check_promises.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main() -> int:
    """Prints one line a missing test; 1 when there is any."""
    root = Path(__file__).resolve().parent.parent
    named = set(re.findall(r"\b(test_\w+)`", (root / "docs/internals/promises.md").read_text()))
    defined = set()
    for path in (root / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"^\s*def (test_\w+)", path.read_text(), re.MULTILINE))
    for name in sorted(named - defined):
        print(f"docs/internals/promises.md: there is no {name}")
    if not named:
        print("docs/internals/promises.md: names no test")
    return 1 if named - defined or not named else 0


if __name__ == "__main__":
    sys.exit(main())
