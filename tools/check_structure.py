"""Checks the structure of the Rust sources: no cycles among files and folders, and who may do what.

    python tools/check_structure.py               # all of it; prints the picture of the folders
    python tools/check_structure.py --report      # everything found, to untangle it; --report server: of one area
    python tools/check_structure.py --write-doc   # puts that picture into docs/architecture.md

The import graph is computed from crates/*/src, see tools/structure/. There is no list of layers, of allowed imports or
of exceptions: a file or a folder either is in a cycle or not. The permits (where `unsafe`, system calls, the clock,
pyo3 may stand) are in tools/structure/permits.py, also without exceptions. import-linter and Ruff check the Python
sources.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from structure import graph, rust
from structure.findings import Findings, short, size
from structure.sources import Sources

DOCUMENT: Final = "docs/architecture.md"
BEGIN: Final = "<!-- folders: written by tools/check_structure.py --write-doc -->"
END: Final = "<!-- end of folders -->"


def main(arguments: list[str] | None = None, root: Path | None = None) -> int:
    """Prints what is found; 1 when there is anything."""
    parser = argparse.ArgumentParser(description="Checks the structure of the Rust sources.")
    parser.add_argument("--report", nargs="?", const="", metavar="AREA", help="print everything found, and succeed")
    parser.add_argument("--write-doc", action="store_true", help=f"write the picture into {DOCUMENT}")
    options = parser.parse_args(arguments)
    root = root or Path(__file__).resolve().parent.parent
    sources = read(root)
    if options.write_doc:
        return write_document(root, sources)
    found = Findings.of(sources)
    if options.report is not None:
        print(found.report(options.report))
        return 0
    findings = [*found.texts(), *stale_document(root, sources)]
    if not findings:
        print(f"{size(sources)}, 0 cycles, 0 exceptions\n\n{picture(sources)}")
    return told(findings)


def told(findings: list[str]) -> int:
    """Prints them; 1 when there is any."""
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def read(root: Path) -> Sources:
    """The sources of the tree."""
    sources = Sources()
    rust.read(root, sources)
    return sources


def picture(sources: Sources) -> str:
    """The folders in rows: the files directly in each import from rows below alone.

    Folders that import each other, as a folder and its module do, have `=` between them.
    """
    folders = sources.folders()
    rank: dict[str, int] = {}
    rows: dict[int, list[str]] = {}
    for component in graph.layers(folders):
        below = [rank[each] for folder in component for each in folders[folder] if each not in component]
        row = max(below, default=-1) + 1
        rank |= dict.fromkeys(component, row)
        rows.setdefault(row, []).append(" = ".join(short(each) for each in component))
    return "\n".join("    " + "   ".join(rows[row]) for row in sorted(rows, reverse=True))


def stale_document(root: Path, sources: Sources) -> list[str]:
    """A finding when the document does not have the picture as it is now."""
    text = (root / DOCUMENT).read_text() if (root / DOCUMENT).exists() else ""
    if BEGIN not in text or END not in text:
        return [f"{DOCUMENT}: has no picture of the folders between {BEGIN} and {END}"]
    if text == with_picture(text, sources):
        return []
    return [f"{DOCUMENT}: the picture of the folders is stale; python tools/check_structure.py --write-doc"]


def write_document(root: Path, sources: Sources) -> int:
    """Puts the picture where the document has the marks for it."""
    text = (root / DOCUMENT).read_text()
    (root / DOCUMENT).write_text(with_picture(text, sources))
    return told(stale_document(root, sources))


def with_picture(text: str, sources: Sources) -> str:
    """The document with the picture between its marks."""
    block = f"{BEGIN}\n\n{picture(sources)}\n\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
