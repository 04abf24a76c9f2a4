#!/usr/bin/env python3
"""Print the line coverage of folders and files from an lcov report.

    python tools/coverage_table.py target/coverage.lcov crates

Names are relative to the folder in the second argument. The lines of a file's own `mod tests` in Rust do not count:
tests run themselves.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

TESTS = re.compile(r"^#\[cfg\((?:all\()?test\b.*\n(?:#.*\n)*mod \w+ \{", re.MULTILINE)


def read_report(report: str) -> dict[Path, dict[int, bool]]:
    """Whether each line with code was run, by file."""
    files: dict[Path, dict[int, bool]] = {}
    lines: dict[int, bool] = {}
    for row in report.splitlines():
        key, _, value = row.partition(":")
        if key == "SF":
            lines = files.setdefault(Path(value), {})
        elif key == "DA":
            number, count = value.split(",")[:2]
            lines[int(number)] = count != "0"
    return files


def without_tests(source: str, lines: dict[int, bool]) -> dict[int, bool]:
    """The lines above the first `mod tests { ... }`, which ends its file."""
    tests = TESTS.search(source)
    if tests is None:
        return lines
    first = source.count("\n", 0, tests.start()) + 1
    return {number: is_run for number, is_run in lines.items() if number < first}


def main(report: str, begins_at: str) -> None:
    """Print the table of a report."""
    folders: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    root = Path.cwd() / begins_at
    for path, lines in read_report(Path(report).read_text()).items():
        counted = without_tests(path.read_text(), lines)
        if counted:
            name = path.absolute().relative_to(root)
            folders[str(name.parent)][name.name] = (sum(counted.values()), len(counted))
    everything = (0, 0)
    for folder, files in sorted(folders.items()):
        run, lines_of_folder = (sum(column) for column in zip(*files.values(), strict=True))
        everything = (everything[0] + run, everything[1] + lines_of_folder)
        show(folder + "/", run, lines_of_folder)
        for file, counts in sorted(files.items()):
            show("    " + file, *counts)
    show("all", *everything)


def show(name: str, run: int, lines: int) -> None:
    """Print a row."""
    print(f"{name:<40} {100 * run / lines:6.1f} %   {lines - run:5} of {lines:5} lines not run")


if __name__ == "__main__":
    main(*sys.argv[1:])
