"""All that is wrong with a tree, and how it is told."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from structure import graph, permits
from structure.graph import Edge
from structure.permits import Permit
from structure.sources import Import, Sources, Use


@dataclass
class Knot:
    """Files, or files and folders that stand next to each other, which import each other in a circle."""

    sources: Sources
    # "" for files of any folder.
    folder: str
    nodes: list[str]
    example: list[str]
    cuts: list[Edge]
    # The edges of files behind each edge; that of two files is its own.
    behind: dict[Edge, list[Edge]]

    @property
    def area(self) -> str:
        """The crate or the package."""
        return area_of(self.nodes[0])

    @property
    def title(self) -> str:
        """How many of what."""
        what = f"files and folders of {self.folder}/" if self.folder else "files"
        return f"{len(self.nodes)} {what} import each other in a circle"

    def text(self) -> str:
        """The finding, with the shortest way around."""
        lines = [f"{self.area}: {self.title}; the shortest way around:"]
        for edge in zip(self.example, self.example[1:], strict=False):
            lines += [f"    {line}" for line in self.edge(edge, 1)]
        return "\n".join(lines)

    def edge(self, edge: Edge, most: int) -> list[str]:
        """The files that make an edge, and where; `most` of them."""
        files = self.behind[edge]
        lines = [
            f"{source}:{places_of(self.sources.imports[source][target])} imports {target} "
            f"({names_of(self.sources.imports[source][target])})"
            for source, target in files[:most]
        ]
        if len(files) > most:
            lines.append(f"and {len(files) - most} more from {short(edge[0])} to {short(edge[1])}")
        return lines


@dataclass
class Findings:
    """All that is wrong with a tree."""

    sources: Sources
    knots: list[Knot]
    permits: list[tuple[Permit, Use]]
    others: list[str]

    @classmethod
    def of(cls, sources: Sources) -> Findings:
        """What is found in these sources."""
        knots = [*_file_knots(sources), *_folder_knots(sources)]
        return cls(sources, knots, permits.broken(sources.uses), sources.problems)

    def texts(self) -> list[str]:
        """One text a finding."""
        broken = [f"{use.file}:{use.line}: {use.text}: {permit.rule}" for permit, use in self.permits]
        return [*(knot.text() for knot in self.knots), *broken, *self.others]

    def counts(self) -> Counter[str]:
        """`server.cuts`: how many imports must go until no cycle is left; `server.permits`: how often one is broken."""
        counts: Counter[str] = Counter()
        for knot in self.knots:
            counts[f"{knot.area}.cuts"] += len(knot.cuts)
        for _, use in self.permits:
            counts[f"{area_of(use.file)}.permits"] += 1
        return counts

    def report(self, area: str = "") -> str:
        """All of it, for those who untangle it; of one area, or of all."""
        areas = [area] if area else sorted({area_of(file) for file in self.sources.files})
        counts = self.counts()
        lines = [f"{size(self.sources)}, {len(self.knots)} cycles", ""]
        for each in areas:
            lines.append(f"{each}: {counts[f'{each}.cuts']} cuts, {counts[f'{each}.permits']} permits broken")
        for each in areas:
            lines += self._report_of(each)
        return "\n".join([*lines, *([""] if self.others else []), *self.others])

    def _report_of(self, area: str) -> Iterator[str]:
        yield from ("", f"==== {area} " + "=" * (100 - len(area)))
        for knot in self.knots:
            if knot.area == area:
                yield from ("", *_knot_report(knot))
        broken: dict[str, dict[str, list[Use]]] = defaultdict(lambda: defaultdict(list))
        for permit, use in self.permits:
            if area_of(use.file) == area:
                broken[permit.rule][use.file].append(use)
        for rule, files in broken.items():
            yield from ("", f"{rule}; elsewhere {sum(map(len, files.values()))}:")
            for file, uses in sorted(files.items()):
                yield f"    {file}: " + ", ".join(f"{use.line} {use.text}" for use in uses)
        away = [each for each in self.sources.methods_elsewhere if area_of(each[0]) == area]
        if away:
            yield from ("", "No finding, but no import shows it: methods of a type that another file defines.")
            for file, line, name, home in away:
                yield f"    {file}:{line}: impl {name}, of {home}"


def size(sources: Sources) -> str:
    """How big the graph is."""
    return f"{len(sources.files)} files, {sum(map(len, sources.imports.values()))} imports"


def area_of(file: str) -> str:
    """The name of the crate: `http`, `server` or `wsgi`."""
    return file.split("/")[1]


def short(path: str) -> str:
    """What a file or a folder is called in tables: `server/os` for `crates/server/src/os`."""
    return re.sub(r"^crates/(\w+)/src\b", r"\1", path)


def places_of(places: Sequence[Import]) -> str:
    """The lines, the first few of them."""
    lines = sorted({place.line for place in places})
    return ",".join(map(str, lines[:6])) + (",..." if len(lines) > 6 else "")


def names_of(places: Sequence[Import]) -> str:
    """The names that are imported, each once."""
    return ", ".join(dict.fromkeys(place.name.rpartition("::")[2] for place in places))


def _file_knots(sources: Sources) -> Iterator[Knot]:
    cost = {(one, two): len(places) for one, targets in sources.imports.items() for two, places in targets.items()}
    for nodes in graph.knots(sources.imports):
        example = graph.shortest_cycle(sources.imports, nodes)
        cuts = graph.cuts(sources.imports, nodes, cost)
        yield Knot(sources, "", nodes, example, cuts, {edge: [edge] for edge in cost})


def _folder_knots(sources: Sources) -> Iterator[Knot]:
    """The knots among what stands next to each other; those of files alone are known already."""
    for folder, edges in sorted(sources.siblings().items()):
        behind = {(one, two): files for one, targets in edges.items() for two, files in targets.items()}
        cost = {edge: len(files) for edge, files in behind.items()}
        for nodes in graph.knots(edges):
            if all(Path(node).suffix for node in nodes):
                continue
            yield Knot(
                sources, folder, nodes, graph.shortest_cycle(edges, nodes), graph.cuts(edges, nodes, cost), behind
            )


def _knot_report(knot: Knot) -> Iterator[str]:
    """The knot: who imports whom in it, the cuts, and the order of the files once they are made."""
    yield f"{knot.title}. The shortest way around:"
    for edge in zip(knot.example, knot.example[1:], strict=False):
        yield from (f"    {line}" for line in knot.edge(edge, 3))
    inside = {edge for edge in knot.behind if edge[0] in knot.nodes and edge[1] in knot.nodes}
    yield from ("", f"  {len(inside)} imports within it (* one to cut):")
    for node in knot.nodes:
        targets = sorted(edge for edge in inside if edge[0] == node)
        yield f"    {short(node)} -> " + ", ".join(
            f"{short(edge[1])}{'*' if edge in knot.cuts else ''}" for edge in targets
        )
    yield from ("", f"  Without these {len(knot.cuts)} imports there is no cycle left:")
    for edge in knot.cuts:
        yield from (f"    {line}" for line in knot.edge(edge, 20))
    rest = {node: [two for one, two in inside if one == node and (one, two) not in knot.cuts] for node in knot.nodes}
    yield from ("", "  The order then, lowest first: " + ", ".join(short(nodes[0]) for nodes in graph.layers(rest)))
