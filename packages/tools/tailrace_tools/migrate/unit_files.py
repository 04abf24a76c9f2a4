"""The command in a systemd unit or Dockerfile, with the variables that the file sets. Nothing is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
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


def is_unit(text: str) -> bool:
    """Whether the file is a systemd service unit."""
    return _SERVICE.search(text) is not None


def is_dockerfile(path: Path) -> bool:
    """Whether the file name is that of a Dockerfile."""
    return _DOCKERFILE.fullmatch(path.name) is not None


def unit(text: str, path: Path) -> Source:
    """The options of the command in `ExecStart=`. Raises ConfigError."""
    command, directory = "", ""
    variables: dict[str, str] = {}
    for line in _joined(text, "#;"):
        key, equals, value = (part.strip() for part in line.partition("="))
        if key == "ExecStart" and equals:
            command = value.lstrip("-@:+!")
        elif key == "WorkingDirectory":
            directory = value.lstrip("-")
        elif key == "Environment":
            variables.update(_assigned(value, path))
    if not command_line.looks_like_one(command):
        raise ConfigError(f"{path}: ExecStart= does not start a known server")
    return _parsed(_SPECIFIER.sub(_specified, command), path, variables, Path(directory) if directory else Path())


def _specified(found: re.Match[str]) -> str:
    return {"%": "%", "t": "/run"}.get(found[1], f"$(%{found[1]})")


def dockerfile(text: str, path: Path) -> Source:
    """The options of the command in the last `ENTRYPOINT` and `CMD`. Raises ConfigError."""
    entry_point, command = "", ""
    variables: dict[str, str] = {}
    for line in _joined(text, "#"):
        instruction, _, rest = line.partition(" ")
        rest = rest.strip()
        match instruction.upper():
            case "FROM":
                entry_point, command, variables = "", "", {}
            case "ENTRYPOINT":
                # As in a built image, where ENTRYPOINT resets the CMD of the base image.
                entry_point = command_line.from_json(rest)
            case "CMD":
                command = command_line.from_json(rest)
            case "ENV":
                name, _, value = rest.partition(" ")
                variables.update({name: value.strip()} if "=" not in name else _assigned(rest, path))
    whole = f"{entry_point} {command}".strip()
    if not command_line.looks_like_one(whole):
        raise ConfigError(f"{path}: CMD and ENTRYPOINT do not start a known server")
    return _parsed(whole, path, variables, path.parent)


def _parsed(command: str, path: Path, variables: dict[str, str], directory: Path) -> Source:
    found = command_line.parse(command, variables, directory)
    found.title = str(path)
    return found


def _assigned(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """The assignments of a line, which may be quoted individually."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {text[:40]!r} cannot be split into words: {str(error).lower()}") from None
    for word in words:
        if found := _SETTING.fullmatch(word):
            yield found[1], found[2]


def _joined(text: str, comment: str) -> Iterator[str]:
    """The lines without comments; those that end with a backslash continue on the next one."""
    beginning: list[str] = []
    for line in source.lines(text):
        line = line.strip()
        if not line or line[0] in comment:
            continue
        beginning.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield " ".join(beginning)
            beginning = []
