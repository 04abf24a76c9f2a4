"""The imports of Rust crates: which file names what another file defines.

A lexer takes comments, strings and all that is compiled for tests only (`#[cfg(test)]`, `#[test]`) away. What is left
is read as a sequence of tokens, so that paths in macros count, too. `mod` declarations give the tree of modules, `use`
declarations the names in each. Then every path (`crate::a::B`, `super::c`, `a::f` where `a` was imported) is followed,
through re-exports and globs, to the file that defines its item. That file gets the edge.

- `use crate::a;` of a module makes no edge, what the file then takes from it (`a::f`) does.
- A file that only declares modules and re-exports has no edges of its own.
- A module that was declared nowhere is a problem: the compiler does not see it, and neither does this.
- What a path names but nobody declares (it comes out of a macro) is taken to be defined where the path ends.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from structure.sources import Sources, Use

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

Segments: TypeAlias = tuple[str, ...]

_TOKEN: Final = re.compile(
    r"""
      (?P<comment> //[^\n]* )
    | (?P<block> /\* )
    | (?P<raw> \b[bc]?r(?P<marks>\#*)" .*? "(?P=marks) )
    | (?P<string> \b[bc]?"(?:[^"\\]|\\.)*" | "(?:[^"\\]|\\.)*" )
    | (?P<char> b?'(?:[^'\\\n]|\\u\{[^}]*\}|\\x..|\\.)' )
    | (?P<lifetime> '\w+ )
    | (?P<word> (?:r\#)?\w+ )
    | (?P<path> :: )
    | (?P<other> \S )
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK: Final = re.compile(r"/\*|\*/")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_DEFINES: Final = frozenset({"fn", "struct", "enum", "trait", "type", "const", "static", "union"})
_ITEMS: Final = _DEFINES | frozenset({"mod", "impl", "unsafe", "async", "extern", "macro_rules"})
_KEYWORDS: Final = frozenset({"crate", "self", "super"})


class Token(NamedTuple):
    """A word, a string with its quotes, `::`, or one other character."""

    text: str
    line: int

    @property
    def is_word(self) -> bool:
        """An identifier or a keyword."""
        return self.text.isidentifier()


class Mention(NamedTuple):
    """A path in the code; `is_use` if a `use` declaration has it."""

    line: int
    segments: Segments
    is_use: bool
    is_glob: bool = False


@dataclass(eq=False)
class Module:
    """One module: a file, or `mod x { }` inside of one."""

    crate: Crate
    path: Segments
    file: str
    children: dict[str, Module] = field(default_factory=dict)
    # What `use` brings into scope: name -> paths (of several functions, so there may be more than one).
    bound: dict[str, list[Segments]] = field(default_factory=dict)
    globs: list[Segments] = field(default_factory=list)
    items: set[str] = field(default_factory=set)
    paths: list[Mention] = field(default_factory=list)
    methods: list[tuple[int, Segments]] = field(default_factory=list)


@dataclass(eq=False)
class Crate:
    """A crate: its name in paths, and the modules of all of its files."""

    name: str
    files: dict[str, list[Token]] = field(default_factory=dict)
    modules: list[Module] = field(default_factory=list)
    # Files that declare modules in other files, and files that have more than such declarations and imports.
    with_modules: set[str] = field(default_factory=set)
    with_items: set[str] = field(default_factory=set)
    macros: dict[str, str] = field(default_factory=dict)


def read(root: Path, sources: Sources) -> None:
    """Adds the files of crates/*/src."""
    crates: dict[str, Crate] = {}
    for path in sorted((root / "crates").glob("*/Cargo.toml")):
        document: dict[str, Any] = tomllib.loads(path.read_text())
        crate = Crate(document.get("lib", {}).get("name", document["package"]["name"].replace("-", "_")))
        folder = path.parent / "src"
        texts = {path.relative_to(root).as_posix(): path.read_text() for path in sorted(folder.rglob("*.rs"))}
        everything = {file: list(tokens(text)) for file, text in texts.items()}
        crate.files = {file: without_tests(all_of_it) for file, all_of_it in everything.items()}
        prefix = folder.relative_to(root).as_posix()
        for file in crate.files:
            if file in (f"{prefix}/lib.rs", f"{prefix}/main.rs") or re.fullmatch(rf"{prefix}/bin/[^/]+\.rs", file):
                _Reader(crate, file, ()).read()
        declared = {module.file for module in crate.modules}
        for file in crate.files:
            if file in declared:
                sources.add_file(file)
            elif file not in _declared_for_tests(everything, crate):
                sources.problems.append(f"{file}: no `mod` declares it")
        crates[crate.name] = crate
    for crate in crates.values():
        _add_edges(crate, crates, sources)


# --- from text to tokens ---


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a source without its comments."""
    at, line = 0, 1
    while found := _TOKEN.search(text, at):
        line += text.count("\n", at, found.start())
        end = found.end()
        if found.lastgroup == "block":
            depth = 1
            while depth and (mark := _BLOCK.search(text, end)):
                depth += 1 if mark[0] == "/*" else -1
                end = mark.end()
            end = end if not depth else len(text)
        elif found["comment"] is None:
            yield Token(found[0].removeprefix("r#") if found["word"] else found[0], line)
        line += text.count("\n", found.start(), end)
        at = end


def without_tests(source: list[Token]) -> list[Token]:
    """The tokens without whatever is compiled for tests alone."""
    kept: list[Token] = []
    at = 0
    while at < len(source):
        if source[at].text == "#" and at + 1 < len(source):
            inner = source[at + 1].text == "!"
            opens = at + 1 + inner
            if opens < len(source) and source[opens].text == "[":
                end = _closing(source, opens) + 1
                if _is_for_tests([token.text for token in source[opens + 1 : end - 1]]):
                    if inner:
                        return kept
                    at = _end_of_item(source, end)
                    continue
                kept += source[at:end]
                at = end
                continue
        kept.append(source[at])
        at += 1
    return kept


def _is_for_tests(attribute: list[str]) -> bool:
    if attribute == ["test"]:
        return True
    return attribute[:2] == ["cfg", "("] and _holds(attribute[2:-1]) is False


def _holds(predicate: list[str]) -> bool | None:
    """Whether a `cfg` predicate holds outside of tests; None: that depends on the build."""
    if predicate == ["test"]:
        return False
    if len(predicate) > 2 and predicate[1] == "(":
        parts: list[list[str]] = [[]]
        depth = 0
        for text in predicate[2:-1]:
            depth += (text == "(") - (text == ")")
            if text == "," and not depth:
                parts.append([])
            else:
                parts[-1].append(text)
        values = [_holds(part) for part in parts if part]
        if predicate[0] == "all":
            return False if False in values else None if None in values else True
        if predicate[0] == "any":
            return True if True in values else None if None in values else False
    return None


def _closing(source: list[Token], opens: int) -> int:
    """Where the bracket at `opens` is closed."""
    depth = 0
    for at in range(opens, len(source)):
        depth += (source[at].text in _CLOSING) - (source[at].text in _CLOSING.values())
        if not depth:
            return at
    return len(source) - 1


def _end_of_item(source: list[Token], at: int) -> int:
    """What follows the item, statement or field at `at`, which may begin with further attributes."""
    while at + 1 < len(source) and source[at].text == "#" and source[at + 1].text == "[":
        at = _closing(source, at + 1) + 1
    if at + 1 < len(source) and source[at].text == "pub":
        at = _closing(source, at + 1) + 1 if source[at + 1].text == "(" else at + 1
    if [token.text for token in source[at : at + 2]] in (["const", "fn"], ["const", "unsafe"], ["const", "async"]):
        at += 1
    first = source[at].text if at < len(source) else ""
    while at < len(source):
        text = source[at].text
        if text == ";" or (text == "," and first not in _ITEMS):
            return at + 1
        if text in _CLOSING.values():
            return at
        if text in _CLOSING:
            at = _closing(source, at)
            if text == "{" and first not in ("use", "let", "const", "static"):
                return at + 1
        at += 1
    return at


# --- from tokens to modules ---


class _Reader:
    """Reads one file, and those that it declares."""

    def __init__(self, crate: Crate, file: str, path: Segments) -> None:
        self.crate = crate
        self.file = file
        self.tokens = crate.files[file]
        self.module = Module(crate, path, file)
        self.at = 0

    def text(self, ahead: int = 0) -> str:
        """The token so many places further on; "" after the end."""
        at = self.at + ahead
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def is_word(self, ahead: int) -> bool:
        """Whether that token is a word."""
        at = self.at + ahead
        return 0 <= at < len(self.tokens) and self.tokens[at].is_word

    def read(self) -> Module:
        """The module of this file, added to its crate with all that it declares."""
        self.crate.modules.append(self.module)
        # The modules around the token, and the depth of braces at which each ends.
        around: list[tuple[Module, int]] = []
        depth = 0
        place: str | None = None
        while self.at < len(self.tokens):
            text = self.text()
            if text == "#" and (opens := 1 + (self.text(1) == "!")) and self.text(opens) == "[":
                if self.text(opens + 1) == "path" and self.text(opens + 2) == "=":
                    place = self.text(opens + 3).strip('"')
                end = _closing(self.tokens, self.at + opens) + 1
                while self.at < end:
                    if not self.read_path():
                        self.at += 1
                continue
            if text == "pub" and self.text(1) == "(":
                self.at = _closing(self.tokens, self.at + 1) + 1
                continue
            if text == "mod" and self.is_word(1) and self.text(2) == ";":
                self.declare(self.text(1), place)
                place = None
                self.at += 3
                continue
            if text == "use" and self.text(1) != "<":
                self.at += 1
                self.read_use(())
                self.at += 1
                continue
            if text != "pub":
                self.crate.with_items.add(self.file)
            if text == "mod" and self.is_word(1) and self.text(2) == "{":
                inner = Module(self.crate, (*self.module.path, self.text(1)), self.file)
                self.module.children[self.text(1)] = inner
                self.crate.modules.append(inner)
                around.append((self.module, depth))
                self.module = inner
                depth += 1
                self.at += 3
                continue
            if text == "macro_rules" and self.text(1) == "!" and self.is_word(2):
                self.module.items.add(self.text(2))
                self.crate.macros[self.text(2)] = self.file
            elif text in _DEFINES and self.is_word(1):
                self.module.items.add(self.text(1))
            elif text == "impl" and self.text(-1) in ("", "}", ";", "{", "]", "unsafe"):
                self.read_impl()
            if self.read_path():
                continue
            depth += (text == "{") - (text == "}")
            if around and text == "}" and depth == around[-1][1]:
                self.module = around.pop()[0]
            self.at += 1
        return self.module

    def declare(self, name: str, place: str | None) -> None:
        """`mod name;`, in the file that rustc would take."""
        self.crate.with_modules.add(self.file)
        here = Path(self.file)
        outside = here.parent if here.name in ("mod.rs", "lib.rs", "main.rs") else here.with_suffix("")
        # Modules inside of this file are folders on the way.
        of_file = next(module.path for module in self.crate.modules if module.file == self.file)
        below = outside.joinpath(*self.module.path[len(of_file) :])
        if place:
            candidates = [(here.parent if self.module.path == of_file else below) / place]
        else:
            candidates = [below / f"{name}.rs", below / name / "mod.rs"]
        for candidate in candidates:
            if candidate.as_posix() in self.crate.files:
                reader = _Reader(self.crate, candidate.as_posix(), (*self.module.path, name))
                self.module.children[name] = reader.read()
                return

    def read_use(self, before: Segments) -> None:
        """One tree of a `use` declaration; stops at what ends it."""
        segments = list(before)
        line = self.tokens[min(self.at, len(self.tokens) - 1)].line
        if self.text() == "::":
            segments.append("::")
            self.at += 1
        while self.at < len(self.tokens):
            text = self.text()
            if text == "{":
                self.at += 1
                while self.text() not in ("}", ""):
                    self.read_use(tuple(segments))
                    if self.text() == ",":
                        self.at += 1
                self.at += 1
                return
            if text == "*":
                self.module.globs.append(tuple(segments))
                self.module.paths.append(Mention(line, tuple(segments), True, True))
                self.at += 1
                return
            if text == "self" and segments and self.text(1) != "::":
                self.at += 1
            elif text != "$":
                segments.append(text)
                self.at += 1
            else:
                self.at += 1
                continue
            if self.text() == "::":
                self.at += 1
                continue
            name = segments[-1]
            if self.text() == "as":
                name = self.text(1)
                self.at += 2
            if name != "_":
                self.module.bound.setdefault(name, []).append(tuple(segments))
            self.module.paths.append(Mention(line, tuple(segments), True))
            return

    def read_path(self) -> bool:
        """A path of two segments or more, or the call of a macro; False if none begins here."""
        if not self.is_word(0) or self.text(-1) in ("::", "."):
            return False
        line = self.tokens[self.at].line
        if self.text(1) == "!" and self.text(2) in _CLOSING and self.text() != "macro_rules":
            self.module.paths.append(Mention(line, ("!", self.text()), False))
            return False
        if self.text(1) != "::" or not self.is_word(2):
            return False
        segments = [self.text()]
        self.at += 1
        while self.text() == "::" and self.is_word(1):
            segments.append(self.text(1))
            self.at += 2
        self.module.paths.append(Mention(line, tuple(segments), False))
        return True

    def read_impl(self) -> None:
        """Notes the type of an `impl` without a trait; leaves the place where it is."""
        at, depth = self.at + 1, 0
        segments: list[str] = []
        while at < len(self.tokens) and self.tokens[at].text not in ("{", ";"):
            token = self.tokens[at]
            if token.text == "for" and not depth:
                return
            if token.text == "where":
                break
            if token.text == ">" and self.tokens[at - 1].text == "-":
                at += 1
                continue
            depth += (token.text == "<") - (token.text == ">")
            if token.is_word and not depth:
                segments.append(token.text)
            at += 1
        if segments:
            self.module.methods.append((self.tokens[self.at].line, tuple(segments)))


def _declared_for_tests(everything: dict[str, list[Token]], crate: Crate) -> set[str]:
    """The files that are modules when tests are compiled, but not otherwise."""
    whole = Crate(crate.name, everything)
    for file in {module.file for module in crate.modules if not module.path}:
        _Reader(whole, file, ()).read()
    return {module.file for module in whole.modules}


# --- from modules to edges ---


class _Target(NamedTuple):
    """What a path leads to: a module, or an item and the file that defines it."""

    module: Module | None
    file: str


def _add_edges(crate: Crate, crates: dict[str, Crate], sources: Sources) -> None:
    only_declare = crate.with_modules - crate.with_items
    for module in crate.modules:
        words = {token.text for token in crate.files[module.file]}
        for path in module.paths:
            outside = _outside(module, path.segments, crates)
            if outside:
                sources.uses.append(Use(module.file, path.line, "::".join(outside)))
            elif module.file not in only_declare:
                for file, name in _edges_of(module, path, words, crates):
                    sources.add_import(module.file, file, path.line, name)
        for line, segments in module.methods:
            for target in _follow(module, segments, crates, frozenset()) or _local(module, segments, crates):
                if target.module is None and target.file != module.file:
                    sources.methods_elsewhere.append((module.file, line, segments[-1], target.file))
    for file, all_of_it in crate.files.items():
        if file in sources.files:
            _add_words(file, all_of_it, sources)


def _add_words(file: str, all_of_it: list[Token], sources: Sources) -> None:
    """The words that permits speak of, wherever they stand."""
    for at, token in enumerate(all_of_it):
        if token.text in ("unsafe", "pyo3"):
            sources.uses.append(Use(file, token.line, token.text))
        if token.text == "elapsed" and at and all_of_it[at - 1].text == ".":
            sources.uses.append(Use(file, token.line, ".elapsed()"))


def _edges_of(module: Module, path: Mention, words: set[str], crates: dict[str, Crate]) -> Iterator[tuple[str, str]]:
    """(file, name) for each file that the path leads to."""
    if path.segments[0] == "!":
        name = path.segments[1]
        if name in module.crate.macros and name not in module.bound:
            yield module.crate.macros[name], f"{name}!"
        return
    if not path.is_use and path.segments[0] in module.bound:
        # An imported item has its edge from the `use`; an imported module has one for whatever is taken from it.
        first = _follow(module, path.segments[:1], crates, frozenset())
        if all(target.module is None for target in first):
            return
    for target in _follow(module, path.segments, crates, frozenset()):
        if target.module is None:
            yield target.file, "::".join(part for part in path.segments if part not in _KEYWORDS)
        elif path.is_glob:
            yield from _all_of(target.module, words, crates)


def _all_of(module: Module, words: set[str], crates: dict[str, Crate]) -> Iterator[tuple[str, str]]:
    """What a glob import of the module brings: its own items, and those re-exported names that the file uses."""
    if module.items:
        yield module.file, "*"
    for name, paths in module.bound.items():
        if name in words:
            for path in paths:
                for target in _follow(module, path, crates, frozenset()):
                    if target.module is None:
                        yield target.file, name


def _outside(module: Module, segments: Segments, crates: dict[str, Crate]) -> Segments:
    """The full path of something outside of these crates; () of what is inside, or unknown."""
    for _ in range(8):
        first = segments[0]
        if first == "::":
            segments = segments[1:]
            return () if segments[0] in crates else segments
        if first in _KEYWORDS or first == "!" or first in crates or first in module.children:
            return ()
        paths = [path for path in module.bound.get(first, ()) if path != segments]
        if not paths or paths[0][0] == first:
            return segments
        segments = (*paths[0], *segments[1:])
    return ()


def _local(module: Module, segments: Segments, crates: dict[str, Crate]) -> set[_Target]:
    """A single name that stands in this module."""
    if len(segments) == 1 and segments[0] not in module.items:
        return _look_up(module, segments, crates, frozenset())
    return set()


def _follow(
    module: Module, segments: Segments, crates: dict[str, Crate], seen: frozenset[tuple[str, Segments, str]]
) -> set[_Target]:
    """What a path, as it stands in the module, leads to; nothing when that is outside of these crates."""
    first = segments[0]
    if first == "::":
        return _follow_from_crates(segments[1:], crates, seen)
    if first == "crate":
        return _look_up(_root(module), segments[1:], crates, seen)
    if first in ("self", "super"):
        start: Module = module
        at = 0
        while at < len(segments) and segments[at] in ("self", "super"):
            if segments[at] == "super":
                start = _parent(start)
            at += 1
        return _look_up(start, segments[at:], crates, seen)
    known = first in module.children or first in module.bound or (len(segments) > 1 and first in module.items)
    if known or any(True for _ in _through_globs(module, first, crates, seen)):
        return _look_up(module, segments, crates, seen)
    return _follow_from_crates(segments, crates, seen)


def _follow_from_crates(
    segments: Segments, crates: dict[str, Crate], seen: frozenset[tuple[str, Segments, str]]
) -> set[_Target]:
    crate = crates.get(segments[0])
    return _look_up(crate.modules[0], segments[1:], crates, seen) if crate and crate.modules else set()


def _look_up(
    module: Module,
    segments: Segments,
    crates: dict[str, Crate],
    seen: frozenset[tuple[str, Segments, str]],
) -> set[_Target]:
    """What the segments lead to, beginning in the module."""
    for at, name in enumerate(segments):
        rest = segments[at + 1 :]
        child = module.children.get(name)
        if child and rest:
            module = child
            continue
        found: set[_Target] = {_Target(child, "")} if child else set()
        key = (module.crate.name, module.path, name)
        if key not in seen:
            for path in module.bound.get(name, ()):
                found |= _follow_binding(module, name, (*path, *rest), crates, seen | {key})
            if not found and name not in module.items:
                for other in _through_globs(module, name, crates, seen | {key}):
                    found |= _look_up(other, (name, *rest), crates, seen | {key})
        return found or {_Target(None, module.file)}
    return {_Target(module, "")}


def _follow_binding(
    module: Module, name: str, path: Segments, crates: dict[str, Crate], seen: frozenset[tuple[str, Segments, str]]
) -> set[_Target]:
    """What a `use` declaration leads to. `use a::b as a` does not speak of itself."""
    if path[0] == name and name not in module.children:
        return _follow_from_crates(path, crates, seen)
    return _follow(module, path, crates, seen)


def _through_globs(
    module: Module, name: str, crates: dict[str, Crate], seen: frozenset[tuple[str, Segments, str]]
) -> Iterable[Module]:
    """The modules whose names a glob import brings here, and that have this one."""
    for path in module.globs:
        key = (module.crate.name, module.path, f"*{'::'.join(path)}")
        if key in seen:
            continue
        for target in _follow(module, path, crates, seen | {key}):
            other = target.module
            if other and (
                name in other.children
                or name in other.bound
                or name in other.items
                or any(True for _ in _through_globs(other, name, crates, seen | {key}))
            ):
                yield other


def _root(module: Module) -> Module:
    return next(each for each in module.crate.modules if not each.path)


def _parent(module: Module) -> Module:
    return next((each for each in module.crate.modules if each.path == module.path[:-1]), module)
