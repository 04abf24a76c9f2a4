"""The pages of the manual as a test reads them: code blocks with their markers, links, anchors, names in the text."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*)(?P<rest>[^`]*)")
_TITLE = re.compile(r'title="([^"]*)"')
_COMMENT = re.compile(r"<!-- *(.*?) *-->")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_CODE = re.compile(r"(`+)(.+?)\1")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first fence, from 1. marker: the comment in the line before it, empty if none."""

    page: Path
    line: int
    language: str
    title: str
    marker: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def marked(self, kind: str) -> str | None:
        """What stands behind `kind:` in the marker; None: it is another marker, or there is none."""
        name, _, value = self.marker.partition(":")
        return value.strip() if name == kind else None

    @property
    def commands(self) -> list[Command]:
        """The commands of a console session, each with the lines that it prints."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                assert found, f"{self}: a console session begins with a command"
                found[-1][1].append(line)
        return [Command(line, tuple(printed)) for line, printed in found]


@dataclass(frozen=True)
class Command:
    """A command line, and the lines that it prints."""

    line: str
    printed: tuple[str, ...]


def _split(page: Path) -> tuple[list[Block], list[tuple[int, str]]]:
    """The blocks of a page, and the numbered lines outside of them."""
    blocks, text = [], []
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.fullmatch(lines[number])
        if fence is None:
            text.append((number + 1, lines[number]))
            number += 1
            continue
        begun = number
        while lines[number + 1].strip() != fence["ticks"]:
            number += 1
            assert number + 1 < len(lines), f"{page}:{begun + 1}: the block has no end"
        inside = [line.removeprefix(fence["indent"]) for line in lines[begun + 1 : number + 1]]
        comment = _COMMENT.fullmatch(lines[begun - 1].strip()) if begun else None
        title = _TITLE.search(fence["rest"])
        blocks.append(
            Block(
                page,
                begun + 1,
                fence["language"],
                title[1] if title else "",
                comment[1] if comment else "",
                "".join(f"{line}\n" for line in inside),
            )
        )
        number += 2
    return blocks, text


def blocks(page: Path) -> list[Block]:
    """The fenced blocks, in their order."""
    return _split(page)[0]


def text_of(page: Path) -> list[tuple[int, str]]:
    """The numbered lines outside of blocks."""
    return _split(page)[1]


def links(page: Path) -> list[tuple[int, str]]:
    """The targets of links and images, with their lines."""
    return [
        (number, target) for number, line in text_of(page) for target in _LINK.findall(_CODE.sub(_without_links, line))
    ]


def _without_links(code: re.Match[str]) -> str:
    return re.sub(r"[\[\]()]", "", code[0])


def spans(page: Path) -> list[tuple[int, str]]:
    """What stands between backticks in the text, with its line."""
    return [(number, code[2].strip()) for number, line in text_of(page) for code in _CODE.finditer(line)]


def codes(text: str) -> list[str]:
    """What stands between backticks in a text, such as a cell of a table."""
    return [code[2].strip() for code in _CODE.finditer(text)]


def sections(page: Path, level: int) -> dict[str, str]:
    """The headings of this level, each with the text below it, that of its subheadings included."""
    found: dict[str, str] = {}
    name = None
    for _, line in text_of(page):
        heading = re.fullmatch(r"(#+) +(.*)", line)
        if heading and len(heading[1]) <= level:
            name = heading[2].replace("`", "") if len(heading[1]) == level else None
            if name is not None:
                found[name] = ""
        elif name is not None:
            found[name] += f"{line}\n"
    return found


def rows(page: Path, marker: str) -> list[list[str]]:
    """The cells of the tables behind the comment `marker`, without their headings."""
    found: list[list[str]] = []
    lines = [line for _, line in text_of(page)]
    for begun, line in enumerate(lines):
        comment = _COMMENT.fullmatch(line.strip())
        if comment is None or comment[1] != marker:
            continue
        for row in lines[begun + 3 :]:
            if not row.startswith("|"):
                break
            found.append([cell.strip() for cell in row.strip().strip("|").split("|")])
    assert found, f"{page}: no table behind {marker}"
    return found


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub and the site make them. One that occurs twice is left out."""
    counted: Counter[str] = Counter()
    for _, line in text_of(page):
        if heading := re.fullmatch(r"#{1,6} +(.*?)(?: +#+)?", line):
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            counted[re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")] += 1
    return {anchor for anchor, count in counted.items() if count == 1}
