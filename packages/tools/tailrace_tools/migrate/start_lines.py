"""The lines of Dockerfiles, systemd units, Procfiles, Compose files and shell scripts that start a program.

Nothing is executed. YAML is read line by line, since Tailrace depends on no library for it.
"""

from __future__ import annotations

import enum
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tailrace.errors import ConfigError
from tailrace_tools.migrate import command_line, source
from tailrace_tools.migrate.source import Source

_SERVICE: Final = re.compile(r"^[ \t]*\[Service\]", re.MULTILINE)
_DOCKERFILE: Final = re.compile(r"((Docker|Container)file.*|.*\.(docker|container)file)", re.IGNORECASE)
_SETTING: Final = re.compile(r"([A-Za-z]\w*)=(.*)", re.DOTALL)
# In a unit: `%%` is a percent sign, `%t` the directory of runtime files, and other specifiers depend on the unit.
_SPECIFIER: Final = re.compile(r"%([%A-Za-z])")
_PROCESS: Final = re.compile(r"([\w-]+:\s*)(.*)")
_COMPOSE: Final = re.compile(r"( *)(command|entrypoint):(?:\s+(.*))?")

# Lines of a value in a Compose file.
_MAX_LINES: Final = 100


class Form(enum.Enum):
    """How a line is quoted, and what expands its variables."""

    SHELL = enum.auto()
    SYSTEMD = enum.auto()
    COMPOSE = enum.auto()


@dataclass(frozen=True)
class Line:
    """A line that starts a program, with those that continue it.

    number and last: its lines in the file, from 1. written: the whole, in one line, or two for ENTRYPOINT and CMD. key:
    what precedes the command, such as `CMD `. value: the command, for a shell or as a JSON list. variables: what the
    file sets for it.
    """

    number: int
    last: int
    written: str
    key: str
    value: str
    form: Form = Form.SHELL
    variables: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""

    @property
    def command(self) -> str:
        """The command for a shell."""
        return command_line.from_json(self.value)

    def understood(self, text: str) -> str:
        """Text of the line as a shell would have it."""
        return _SPECIFIER.sub(_specified, text) if self.form is Form.SYSTEMD else text


def is_unit(text: str) -> bool:
    """Whether the file is a systemd service unit."""
    return _SERVICE.search(text) is not None


def is_dockerfile(path: Path) -> bool:
    """Whether the file name is that of a Dockerfile."""
    return _DOCKERFILE.fullmatch(path.name) is not None


def read(path: Path, found: list[Line], missing: str) -> Source:
    """The options of the server that one of the lines starts. Raises ConfigError; missing: if there is none."""
    for line in found:
        command = line.understood(line.command)
        if command_line.looks_like_one(command):
            made = command_line.parse(command, line.variables, Path(line.directory) if line.directory else path.parent)
            made.title = str(path)
            return made
    raise ConfigError(f"{path}: {missing}")


def unit(text: str, path: Path) -> list[Line]:
    """The `ExecStart=` of a systemd unit. Raises ConfigError."""
    found: list[tuple[int, int, str, str, str]] = []
    directory = ""
    variables: dict[str, str] = {}
    for number, last, line in _joined(text, "#;"):
        key, equals, value = (part.strip() for part in line.partition("="))
        if key == "ExecStart" and equals and value:
            command = value.lstrip("-@:+!")
            found.append((number, last, line, f"ExecStart={value[: len(value) - len(command)]}", command))
        elif key == "WorkingDirectory":
            directory = value.lstrip("-~")
        elif key == "Environment":
            variables.update(_assigned(value, path))
    return [Line(*each, Form.SYSTEMD, variables, directory) for each in found]


def _specified(found: re.Match[str]) -> str:
    return {"%": "%", "t": "/run"}.get(found[1], f"$(%{found[1]})")


def dockerfile(text: str, path: Path) -> list[list[Line]]:
    """The last `ENTRYPOINT` and the last `CMD` of each stage. Raises ConfigError."""
    stages: list[dict[str, Line]] = [{}]
    variables: dict[str, str] = {}
    for number, last, line in _joined(text, "#"):
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word.upper():
            case "FROM":
                stages.append({})
                variables = {}
            case "ENTRYPOINT" | "CMD" as instruction:
                stages[-1][instruction] = Line(number, last, line, f"{word} ", rest, variables=variables)
            case "ENV":
                name, _, value = rest.partition(" ")
                variables.update({name: value.strip()} if "=" not in name else _assigned(rest, path))
    return [sorted(stage.values(), key=lambda line: line.key.upper(), reverse=True) for stage in stages]


def together(stage: list[Line]) -> list[Line]:
    """The lines of a stage, where a server's ENTRYPOINT and the arguments in CMD are one line."""
    words = [command_line.json_list(line.value) for line in stage]
    if len(stage) < 2 or not words[0] or not words[1] or not command_line.looks_like_one(stage[0].command):
        return stage
    entry, command = stage
    written = f"{entry.written}\n{command.written}"
    whole = json.dumps(words[0] + words[1])
    return [Line(entry.number, entry.last, written, entry.key, whole, variables=entry.variables)]


def procfile(text: str) -> Iterator[Line]:
    """The process types of a Procfile."""
    for number, last, line in _joined(text, "#"):
        found = _PROCESS.fullmatch(line)
        yield Line(number, last, line, found[1] if found else "", found[2] if found else line)


def script(text: str) -> Iterator[Line]:
    """The lines of a shell script."""
    for number, last, line in _joined(text, "#"):
        yield Line(number, last, line, "", line)


def compose(text: str) -> Iterator[Line]:
    """`command:` and `entrypoint:` of a Compose file, as far as they are readable without a library for YAML."""
    lines = source.lines(text)
    for place, line in enumerate(lines):
        found = _COMPOSE.fullmatch(line.rstrip())
        if found is None:
            continue
        indent, last = len(found[1]), place + 1
        while last < len(lines) and last - place <= _MAX_LINES and _continues(lines[last], indent):
            last += 1
        more = [each.strip() for each in lines[place + 1 : last] if each.strip() and each.strip()[0] != "#"]
        value = _yaml((found[3] or "").strip(), more) if last - place <= _MAX_LINES else ""
        if value:
            written = " ".join([line.strip(), *more])
            yield Line(place + 1, last, written, f"{found[2]}: ", value, Form.COMPOSE)


def _continues(line: str, indent: int) -> bool:
    stripped = line.strip()
    begins = len(line) - len(line.lstrip(" "))
    return not stripped or begins > indent or (begins == indent and stripped.startswith("- "))


def _yaml(first: str, more: list[str]) -> str:
    """The command in a YAML value: as a JSON list if it is a list; empty if it is not understood."""
    if first[:1] in ("|", ">"):
        return (" " if first[0] == ">" else "\n").join(more)
    if not first and more and all(each.startswith("- ") for each in more):
        return json.dumps([_scalar(each[2:].strip()) for each in more])
    whole = " ".join([first, *more])
    if whole.startswith("["):
        lexer = shlex.shlex(whole.rpartition("]")[0][1:], posix=True)
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
        try:
            return json.dumps([each for word in lexer if (each := word.strip())])
        except ValueError:
            return ""
    return "" if whole[:1] in ("&", "*", "!", "{") else _scalar(whole)


def _scalar(text: str) -> str:
    if text[:1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:].rpartition('"')[0]
    if text[:1] == "'":
        return text[1:].rpartition("'")[0].replace("''", "'")
    return re.sub(r"\s#.*", "", text).strip()


def _assigned(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """The assignments of a line, which may be quoted individually."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {text[:40]!r} cannot be split into words: {str(error).lower()}") from None
    for word in words:
        if found := _SETTING.fullmatch(word):
            yield found[1], found[2]


def _joined(text: str, comment: str) -> Iterator[tuple[int, int, str]]:
    """The lines without comments, with the numbers of the first and the last one; those that end with a backslash
    continue on the next one."""
    beginning: list[str] = []
    first = 0
    for number, line in enumerate(source.lines(text), 1):
        line = line.strip()
        if not line or line[0] in comment:
            continue
        first = first if beginning else number
        beginning.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            yield first, number, " ".join(beginning)
            beginning = []
