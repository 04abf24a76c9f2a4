"""Counts what makes the Rust sources hard to find one's way in.

    python tools/source_figures.py

- The five types with the most methods of their own, trait implementations aside, and the five widest traits.
- Names that more than one type has.
- Functions that return bool, change something and are not named as a question: a caller cannot tell what true means.
  These are candidates, found by the signature (`&mut`) and by what the body calls.
- Lines of code by crate, without blank lines and comments: those that are compiled for tests alone are counted apart.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from structure import rust
from structure.rust import Token
from structure.sources import Sources

ROOT: Final = Path(__file__).resolve().parent.parent
QUESTIONS: Final = ("is_", "are_", "has_", "have_", "can_", "may_", "must_", "wants_", "needs_", "should_", "was_")
# What true means is plain from how the standard library names such methods: try_ that it was done, insert that it is
# new, remove that it was there.
STANDARD: Final = ("try_", "insert", "remove")
# Methods that change what they are called on.
CHANGING: Final = frozenset(
    [
        *("store", "swap", "push", "insert", "remove", "take", "replace", "send", "compare_exchange", "lock", "set"),
        *("fetch_add", "fetch_sub", "fetch_or", "fetch_and", "push_back", "pop", "pop_front", "clear", "extend"),
    ]
)


class Function(NamedTuple):
    """owner: the type or trait whose method it is; empty: none's. is_of_trait: it implements a method of a trait."""

    file: str
    line: int
    name: str
    owner: str
    is_of_trait: bool
    returns_bool: bool
    is_changing: bool


@dataclass
class Figures:
    """types: (file, name) of each struct, enum, union and trait."""

    types: list[tuple[str, str]] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    # Lines by crate.
    code: Counter[str] = field(default_factory=Counter)
    tests: Counter[str] = field(default_factory=Counter)

    def widest(self) -> list[tuple[int, str, str]]:
        """(methods, type, file) of each, the widest first."""
        owned = Counter((each.owner, each.file) for each in self.functions if each.owner and not each.is_of_trait)
        return sorted(((number, *key) for key, number in owned.items()), key=lambda each: (-each[0], each[1:]))

    def repeated(self) -> dict[str, list[str]]:
        """The files of each name that has several definitions, the most frequent one first."""
        files: dict[str, list[str]] = defaultdict(list)
        for file, name in self.types:
            files[name].append(file)
        several = {name: found for name, found in files.items() if len(found) > 1}
        return dict(sorted(several.items(), key=lambda each: (-len(each[1]), each[0])))

    def unclear(self) -> list[Function]:
        """Functions that change something and return bool."""
        return [
            each
            for each in self.functions
            if each.returns_bool and each.is_changing and not each.name.startswith((*QUESTIONS, *STANDARD))
        ]


def read(root: Path) -> Figures:
    """Those of crates/."""
    figures, sources = Figures(), Sources()
    rust.read(root, sources)
    for path in sorted((root / "crates").rglob("*.rs")):
        file = path.relative_to(root).as_posix()
        crate = path.relative_to(root / "crates").parts[0]
        everything = list(rust.tokens(path.read_text()))
        kept = rust.without_tests(everything) if file in sources.files else []
        figures.code[crate] += lines(kept)
        figures.tests[crate] += lines(everything) - lines(kept)
        scan(file, kept, figures)
    return figures


def lines(source: list[Token]) -> int:
    """How many lines have a token."""
    return len({line for token in source for line in range(token.line, token.line + token.text.count("\n") + 1)})


def scan(file: str, source: list[Token], figures: Figures) -> None:
    """Adds the types and functions of one file."""
    # The owners around the token, each with the depth of braces at which it ends.
    around: list[tuple[str, bool, int]] = []
    depth = at = 0
    while at < len(source):
        text = source[at].text
        following = source[at + 1].text if at + 1 < len(source) else ""
        if text == "impl" and (not at or source[at - 1].text in ("}", ";", "{", "]", "unsafe")):
            opens = find(source, at, "{")
            around.append((*owner(source[at + 1 : opens]), depth))
            depth, at = depth + 1, opens
        elif text in ("struct", "enum", "union", "trait") and following.isidentifier():
            figures.types.append((file, following))
            if text == "trait":
                opens = find(source, at, "{")
                around.append((following, False, depth))
                depth, at = depth + 1, opens
        elif text == "fn" and following.isidentifier():
            name, is_of_trait = around[-1][:2] if around else ("", False)
            begin = find(source, at, "{", ";")
            end = closing(source, begin)
            signature = [token.text for token in source[at:begin]]
            figures.functions.append(
                Function(
                    *(file, source[at].line, following, name, is_of_trait),
                    returns_bool=returned(signature) == ["bool"],
                    is_changing=changes(signature, [token.text for token in source[begin:end]]),
                )
            )
            at = begin - 1
        else:
            depth += (text == "{") - (text == "}")
            if around and text == "}" and depth == around[-1][2]:
                around.pop()
        at += 1


def find(source: list[Token], at: int, *texts: str) -> int:
    """Where one of these stands next, outside of brackets."""
    depth = 0
    for place in range(at, len(source)):
        text = source[place].text
        if not depth and text in texts:
            return place
        depth += (text in "([") - (text in ")]")
    return len(source)


def closing(source: list[Token], opens: int) -> int:
    """Where the brace at `opens` is closed; `opens` if there is none."""
    depth = 0
    for place in range(opens, len(source)):
        depth += (source[place].text == "{") - (source[place].text == "}")
        if not depth:
            return place
    return len(source)


def owner(header: list[Token]) -> tuple[str, bool]:
    """The type of an `impl`, and whether it implements a trait."""
    names: list[str] = []
    is_of_trait, depth = False, 0
    for before, token in zip([Token("", 0), *header], header, strict=False):
        if token.text == "where":
            break
        if token.text == "for" and not depth:
            is_of_trait, names = True, []
        elif token.text != ">" or before.text != "-":
            depth += (token.text == "<") - (token.text == ">")
            if token.is_word and not depth:
                names.append(token.text)
    return names[-1] if names else "", is_of_trait


def returned(signature: list[str]) -> list[str]:
    """What stands after the last arrow outside of the parameters."""
    depth = 0
    for at, text in enumerate(signature):
        depth += (text in "([") - (text in ")]")
        if not depth and text == ">" and signature[at - 1] == "-":
            rest = signature[at + 1 :]
            return rest[: rest.index("where")] if "where" in rest else rest
    return []


def changes(signature: list[str], body: list[str]) -> bool:
    """Whether it is given something to change, or calls a method that changes."""
    given = any(one == "&" and other == "mut" for one, other in pairs(signature))
    return given or any(one == "." and other in CHANGING for one, other in pairs(body))


def pairs(texts: list[str]) -> Iterator[tuple[str, str]]:
    """Each token with the next one; a lifetime in between does not count."""
    plain = [text for text in texts if not text.startswith("'")]
    return pairwise(plain)


def report(figures: Figures) -> str:
    """The text that is printed."""
    repeated, unclear, widest = figures.repeated(), figures.unclear(), figures.widest()
    parts = ["The types with the most methods:"]
    parts += [f"    {number:4} {name}  {file}" for number, name, file in widest[:5]]
    parts.append(f"\nNames of several types ({len(repeated)}):")
    parts += [f"    {len(files)} {name}  {' '.join(files)}" for name, files in repeated.items()]
    parts.append(f"\nFunctions that change something, return bool and are not named as a question ({len(unclear)}):")
    parts += [f"    {each.name}  {each.file}:{each.line}" for each in unclear]
    parts.append("\nLines of code, without tests and of tests:")
    parts += [f"    {number:7,} {figures.tests[crate]:7,}  {crate}" for crate, number in sorted(figures.code.items())]
    parts.append(f"    {figures.code.total():7,} {figures.tests.total():7,}  all crates")
    return "\n".join(parts)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Prints what is counted."""
    parser = argparse.ArgumentParser(
        description="Counts wide types, repeated names, unclear bools and lines of code in the Rust sources."
    )
    parser.parse_args(arguments)
    print(report(read(root)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
