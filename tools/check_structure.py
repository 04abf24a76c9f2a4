"""Checks the structure of the sources: no cycles among files and folders, and who may do what.

    python tools/check_structure.py               # all of it; prints the table of folders
    python tools/check_structure.py --report      # everything found, to untangle it; --report server: of one area
    python tools/check_structure.py --table       # the table of folders
    python tools/check_structure.py --write-doc   # puts that table into docs/architecture.md

The import graph is computed from crates/*/src and tailrace/, see tools/structure/. There is no list of layers, of
allowed imports or of exceptions: a file or a folder either is in a cycle or not. The permits (where `unsafe`, system
calls, the clock, pyo3 may stand) are in tools/structure/permits.py, also without exceptions.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from structure import graph, python, rust
from structure.findings import Findings, short, size
from structure.sources import Sources

PACKAGE: Final = "tailrace"
DOCUMENT: Final = "docs/architecture.md"
BEGIN: Final = "<!-- folders: written by tools/check_structure.py --write-doc -->"
END: Final = "<!-- end of folders -->"


def main(arguments: list[str] | None = None, root: Path | None = None) -> int:
    """Prints what is found; 1 when there is anything."""
    parser = argparse.ArgumentParser(description="Checks the structure of the sources.")
    parser.add_argument("--report", nargs="?", const="", metavar="AREA", help="print everything found, and succeed")
    parser.add_argument("--table", action="store_true", help="print the table of folders alone")
    parser.add_argument("--write-doc", action="store_true", help=f"write the table into {DOCUMENT}")
    options = parser.parse_args(arguments)
    root = root or Path(__file__).resolve().parent.parent
    sources = read(root)
    if options.table:
        print(table(sources))
        return 0
    if options.write_doc:
        return write_document(root, sources)
    found = Findings.of(root, sources)
    if options.report is not None:
        print(found.report(options.report))
        return 0
    findings = [*found.texts(), *stale_document(root, sources)]
    if not findings:
        print(f"{size(sources)}, 0 cycles, 0 exceptions\n\n{table(sources)}")
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
    python.read(root, PACKAGE, sources)
    return sources


def table(sources: Sources) -> str:
    """Each folder with what the files directly in it import, in Markdown; a folder stands below those it imports."""
    folders = sources.folders()

    def names(found: list[str]) -> str:
        return ", ".join(f"`{short(each)}`" for each in sorted(found)) or "-"

    lines = ["| folder | imports | imported by |", "|---|---|---|"]
    for each in (folder for layer in graph.layers(folders) for folder in layer):
        importers = [other for other, imports in folders.items() if each in imports]
        lines.append(f"| `{short(each)}` | {names(list(folders[each]))} | {names(importers)} |")
    return "\n".join(lines)


def stale_document(root: Path, sources: Sources) -> list[str]:
    """A finding when the document does not have the table as it is now."""
    text = (root / DOCUMENT).read_text() if (root / DOCUMENT).exists() else ""
    if BEGIN not in text or END not in text:
        return [f"{DOCUMENT}: has no table of folders between {BEGIN} and {END}"]
    if text == with_table(text, sources):
        return []
    return [f"{DOCUMENT}: the table of folders is stale; python tools/check_structure.py --write-doc"]


def write_document(root: Path, sources: Sources) -> int:
    """Puts the table where the document has the marks for it."""
    text = (root / DOCUMENT).read_text()
    (root / DOCUMENT).write_text(with_table(text, sources))
    return told(stale_document(root, sources))


def with_table(text: str, sources: Sources) -> str:
    """The document with the table between its marks."""
    block = f"{BEGIN}\n{table(sources)}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
