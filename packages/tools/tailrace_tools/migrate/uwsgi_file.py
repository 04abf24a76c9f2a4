"""A configuration of uWSGI: .ini, .yaml, .json or .xml, with its placeholders and includes.

Options come in the order of the file, and a placeholder stands for what was set before it, as in uWSGI.
"""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tailrace.errors import ConfigError
from tailrace_tools.migrate import source
from tailrace_tools.migrate.source import CPUS, UNSET, Given, Remark, Source
from tailrace_tools.other_servers import find
from tailrace_tools.other_servers.rows import Server

# Options whose value is a further configuration.
_INCLUDES: Final = ("include", "inherit", "ini", "yaml", "yml", "json", "xml", "config")
_PLACEHOLDERS: Final = ("set", "set_placeholder", "set_ph")
_OPENS: Final = re.compile(r"if-[\w-]+|ifenv|ifexists|ifplugin|ifdir|for(-[\w-]+)?")
_CLOSES: Final = ("endif", "end-if", "endfor", "end-for")
_PLACEHOLDER: Final = re.compile(
    r"%\((?P<name>[^()%]+)\)|%(?P<letter>[A-Za-z])|\$\((?P<variable>[^()]+)\)|@\((?P<file>[^()]+)\)"
)
# Files that include each other, characters of a name or value, values of a configuration, and bytes of all its files.
_DEEPEST: Final = 10
_LONGEST: Final = 4096
_MAX_OPTIONS: Final = 10_000
_MAX_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class _Line:
    """An option as written in a file."""

    key: str
    value: str
    place: str


def read(path: Path, section: str = "uwsgi") -> Source:
    """The options of a file. Raises ConfigError."""
    return parse(source.read(path), path, section)


def parse(content: bytes, path: Path, section: str = "uwsgi") -> Source:
    """The options of a file with this content; the files that it includes are read. Raises ConfigError."""
    found = Source(Server.UWSGI, str(path) if section == "uwsgi" else f"{path}:{section}")
    reader = _Reader(found)
    reader.file(content, path, section)
    return found


class _Reader:
    """Follows the options through the files."""

    def __init__(self, found: Source) -> None:
        self.found = found
        self.placeholders: dict[str, str | None] = {}
        self.open: list[tuple[Path, str]] = []
        # The enclosing conditions and loops, as a remark shows them.
        self.conditions: list[str] = []
        self.count = 0
        self.size = 0
        # Names in placeholders of the files that are open.
        self.used: set[str] = set()

    def file(self, content: bytes, path: Path, section: str) -> None:
        """The options of a file and of the files that it includes."""
        here = (Path(os.path.abspath(path)), section)
        if here in self.open or len(self.open) >= _DEEPEST:
            raise ConfigError(f"{path}: the file includes itself, or includes are nested more than {_DEEPEST} deep")
        self.size += len(content)
        if self.size > _MAX_BYTES:
            raise ConfigError(f"{path}: the included files together are larger than {_MAX_BYTES >> 20} MiB")
        self.open.append(here)
        inside = len(self.open) > 1
        self.used |= set(re.findall(r"%\(([^()%]+)\)", source.text(content, path)))
        for line in _lines(content, path, section):
            self.count += 1
            if self.count > _MAX_OPTIONS:
                raise ConfigError(f"{path}: more than {_MAX_OPTIONS} options, so not a configuration")
            if len(line.key) > _LONGEST:
                raise ConfigError(f"{path}: an option's name is longer than {_LONGEST} characters")
            place = f"{path.name}, {line.place}" if inside else line.place
            self._line(_Line(line.key, line.value, place), path)
        self.open.pop()

    def _line(self, line: _Line, path: Path) -> None:
        if line.key in _CLOSES:
            if self.conditions:
                self.conditions.pop()
            return
        if _OPENS.fullmatch(line.key):
            reason = "a tailrace.toml has no conditions or loops: decide about each option in this block"
            remark = Remark(f"{line.key} = {line.value}", line.place, reason)
            self.conditions.append(remark.text)
            self.found.remarks.append(remark)
            return
        if self.conditions:
            reason = f"it depends on `{self.conditions[-1]}`"
            self.found.remarks.append(Remark(f"{line.key} = {line.value}", line.place, reason))
            return
        value, computed = self._expanded(line.value, path)
        name = line.key.replace("-", "_")
        if name in _PLACEHOLDERS and isinstance(value, str):
            key, _, text = value.partition("=")
            self.placeholders[key.strip()] = text
            return
        self.placeholders[line.key] = value if isinstance(value, str) else None
        if name in _INCLUDES:
            self._include(line, value, path)
            return
        if name == "env":
            self.found.variables.append(str(line.value).partition("=")[0])
            return
        entry = find.of(Server.UWSGI, line.key)
        if entry is None and line.key in self.used:
            # A name that the administrator has chosen, which uWSGI accepts, too.
            return
        self.found.given.append(Given(entry, line.key, value, f"{line.key} = {line.value}", line.place, computed))

    def _include(self, line: _Line, value: object, path: Path) -> None:
        if not isinstance(value, str):
            reason = "the file is not read, since its name depends on where the server runs"
            self.found.remarks.append(Remark(f"{line.key} = {line.value}", line.place, reason))
            return
        name, colon, section = value.rpartition(":")
        if not colon or "/" in section:
            name, section = value, "uwsgi"
        target = path.parent / name if name else path
        try:
            content = source.read(target)
        except ConfigError as error:
            reason = f"the file is not read: {str(error).partition(': ')[2] or error}"
            self.found.remarks.append(Remark(f"{line.key} = {line.value}", line.place, reason))
            return
        self.file(content, target, section or "uwsgi")

    def _expanded(self, text: str, path: Path) -> tuple[Any, str]:
        """The value with its placeholders replaced, or UNSET; and what it depends on."""
        depends: list[str] = []
        length = len(text)

        def longer(by: int) -> None:
            nonlocal length
            length += by
            if length > _LONGEST:
                raise ConfigError(f"{path}: a value with placeholders is longer than {_LONGEST} characters")

        def replace(found: re.Match[str]) -> str:
            value: str | None = None
            if (name := found["name"]) is not None:
                value, unknown = self.placeholders.get(name.strip()), f"the placeholder %({name})"
            elif (letter := found["letter"]) is not None:
                value, unknown = _magic(letter, path, self.open[-1][1]), f"%{letter}"
            else:
                unknown = f"${found['variable']}" if found["variable"] else f"the file {found['file']}"
            if value is None:
                depends.append(unknown)
                return found[0]
            longer(len(value) - len(found[0]))
            return value

        if text.strip() == "%k":
            return CPUS, "it depends on the number of CPUs"
        longer(0)
        # A `%` before something else, as in a format of the log, stays.
        value = _PLACEHOLDER.sub(replace, text)
        if depends and not _is_format(text):
            return UNSET, f"it depends on {' and '.join(dict.fromkeys(depends))}"
        return value, ""


def _is_format(text: str) -> bool:
    """Whether it is a format of the log, which has `%(...)` of its own."""
    return "%(method)" in text or "%(uri)" in text or "%(addr)" in text


def _magic(letter: str, path: Path, section: str) -> str | None:
    """The value that uWSGI substitutes for `%n` and similar placeholders; None if it is unknown here."""
    whole = Path(os.path.abspath(path))
    known = {
        "p": str(whole),
        "s": whole.name,
        "n": whole.stem,
        "e": whole.suffix[1:],
        "d": f"{whole.parent}/".replace("//", "/"),
        "c": whole.parent.name,
        "x": section,
    }
    return known.get(letter)


# The notations.


def _lines(content: bytes, path: Path, section: str) -> Iterator[_Line]:
    """The options of a file, by its notation."""
    text = source.text(content, path)
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        found = _yaml(text, path, section)
    elif suffix in (".json", ".js"):
        found = _json(text, path, section)
    elif suffix == ".xml":
        found = _xml(text, path, section)
    else:
        found = _ini(text, path, section)
    return iter(found)


def _ini(text: str, path: Path, section: str) -> list[_Line]:
    found = []
    sections = []
    current = ""
    beginning = ""
    for number, line in enumerate(source.lines(text), 1):
        line = beginning + line.strip()
        beginning = ""
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            current = line[1:].partition("]")[0].strip()
            sections.append(current)
        elif line.endswith("\\") and len(line) < _LONGEST:
            beginning = line[:-1]
        elif current == section:
            key, equals, value = line.partition("=")
            found.append(_Line(key.strip(), value.strip() if equals else "true", f"line {number}"))
    if section not in sections:
        if any(each.startswith(("server:", "app:", "composite:")) for each in sections):
            raise ConfigError(
                f"{path}: a file of PasteDeploy: `pserve` reads it, and its section [server:main] needs "
                "`use = egg:tailrace`"
            )
        some = ", ".join(repr(source.shortened(each, 40)) for each in sections[:5])
        there = f"; there are {some}" if sections else ""
        raise ConfigError(f"{path}: no section [{section}], so not a uWSGI configuration{there}")
    return found


def _yaml(text: str, path: Path, section: str) -> list[_Line]:
    """The part of YAML that uWSGI reads: options below a name, each on its line, and lists."""
    found = []
    is_inside = False
    key = ""
    for number, line in enumerate(source.lines(text), 1):
        bare = line.split(" #")[0].strip()
        if not bare or bare.startswith("#") or bare == "---":
            continue
        if not line[0].isspace() and not bare.startswith("-"):
            is_inside = bare.rstrip(":").strip() == section
            continue
        if not is_inside:
            continue
        if bare.startswith("- "):
            found.append(_Line(key, _unquoted(bare[2:]), f"line {number}"))
            continue
        key, colon, value = (part.strip() for part in bare.partition(":"))
        if not colon:
            raise ConfigError(f"{path}: not the YAML that uWSGI reads: no `key: value` (at line {number})")
        key = _unquoted(key)
        if value:
            found.append(_Line(key, _unquoted(value), f"line {number}"))
    if not found:
        raise ConfigError(f"{path}: no options below `{section}:`, so not a uWSGI configuration")
    return found


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _json(text: str, path: Path, section: str) -> list[_Line]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {str(error).partition(' (char')[0]}") from None
    table = document.get(section) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise ConfigError(f'{path}: no object "{section}", so not a uWSGI configuration')
    found = []
    for key, value in table.items():
        place = source.shortened(f'"{key}"', source.SHOWN)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, (dict, list)):
                raise ConfigError(f"{path}: {key[:100]!r} is neither a value nor a list of values")
            found.append(_Line(key, json.dumps(each) if not isinstance(each, str) else each, place))
    return found


def _xml(text: str, path: Path, section: str) -> list[_Line]:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ConfigError(f"{path}: XML with a DOCTYPE is rejected, since entities may expand without limit")
    try:
        root = xml.etree.ElementTree.fromstring(text)
    except (xml.etree.ElementTree.ParseError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid XML: {error}") from None
    # Not `find`, for which a section such as `@` is a path of its own syntax.
    top = root if root.tag == section else next((each for each in root if each.tag == section), None)
    if top is None:
        raise ConfigError(f"{path}: no element <{section}>, so not a uWSGI configuration")
    return [
        _Line(each.tag, (each.text or "true").strip(), f"<{each.tag}>") for each in top if isinstance(each.tag, str)
    ]
