"""What is known about the source files: who imports whom, on which line, for which name.

A file stands for itself. A folder stands for all files below it: among the files and folders that stand next to each
other in one folder there must be no cycle either. `X.rs` next to a folder `X/` is the module that the folder holds, so
it counts as a file inside of that folder, as `X/mod.rs` does.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple


class Import(NamedTuple):
    """One place where a file names something that another file defines."""

    line: int
    name: str


class Use(NamedTuple):
    """One place where a file uses what only certain folders may: a path of another library, or a word."""

    file: str
    line: int
    text: str


@dataclass
class Sources:
    """All files of the project that were read; paths are relative to its root."""

    files: set[str] = field(default_factory=set)
    # importer -> imported -> where
    imports: dict[str, dict[str, list[Import]]] = field(default_factory=dict)
    # What the permits speak of; `permits.py` says which of them are allowed where.
    uses: list[Use] = field(default_factory=list)
    # (file, line, type, the file that defines the type): methods that the graph does not see, as no import leads there.
    methods_elsewhere: list[tuple[str, int, str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add_file(self, file: str) -> None:
        """Makes the file a node."""
        self.files.add(file)
        self.imports.setdefault(file, {})

    def add_import(self, source: str, target: str, line: int, name: str) -> None:
        """Makes an edge; of a file to itself there is none."""
        if source != target:
            places = self.imports.setdefault(source, {}).setdefault(target, [])
            if Import(line, name) not in places:
                places.append(Import(line, name))

    def home(self, file: str) -> PurePosixPath:
        """The file, or where it counts as standing: `X.rs` next to `X/` is `X/mod.rs`."""
        path = PurePosixPath(file)
        folder = f"{path.with_suffix('')}/"
        if path.suffix == ".rs" and any(each.startswith(folder) for each in self.files):
            return path.with_suffix("") / "mod.rs"
        return path

    def siblings(self) -> dict[str, dict[str, dict[str, list[tuple[str, str]]]]]:
        """For each folder the graph of what stands in it: importer -> imported -> the edges of files behind it."""
        homes = {file: self.home(file) for file in self.files}
        found: dict[str, dict[str, dict[str, list[tuple[str, str]]]]] = defaultdict(dict)
        for source, targets in sorted(self.imports.items()):
            for target in sorted(targets):
                one, two = homes[source].parts, homes[target].parts
                depth = next(
                    (n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
                )
                folder = "/".join(one[:depth])
                graph = found[folder]
                from_, to = "/".join(one[: depth + 1]), "/".join(two[: depth + 1])
                graph.setdefault(from_, {}).setdefault(to, []).append((source, target))
        return dict(found)

    def folders(self) -> dict[str, set[str]]:
        """The graph of the folders, by the files that stand directly in each."""
        graph: dict[str, set[str]] = {}
        for source in self.files:
            graph.setdefault(str(self.home(source).parent), set())
        for source, targets in self.imports.items():
            one = str(self.home(source).parent)
            graph[one] |= {two for target in targets if (two := str(self.home(target).parent)) != one}
        return graph
