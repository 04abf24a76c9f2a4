"""The options of a configuration before conversion, and the reading of its files, which may be hostile."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tailrace.errors import ConfigError
from tailrace_tools.other_servers import find
from tailrace_tools.other_servers.rows import Server

# Bytes. The largest configurations of real projects have a hundredth of it.
_LARGEST: Final = 1 << 20
# Characters of the configuration's text that a comment shows, and of a reason, which may quote a value.
SHOWN: Final = 160
_LONGEST_REASON: Final = 1000


def shortened(text: str, most: int) -> str:
    """The text, or its beginning if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."


class Unset:
    """Stands for the value of an option that is unknown unless the configuration is run."""


UNSET: Final = Unset()


class Cpus:
    """Stands for a value that depends on the number of CPUs."""


CPUS: Final = Cpus()


@dataclass(frozen=True)
class Given:
    """An option that a configuration sets.

    entry: its row; None: the table does not have it. name and text: as they are written. value: what follows from the
    text; UNSET: nothing; CPUS: a number of CPUs. place: where, such as "line 3". computed: why the value may be another
    one where the server runs; "" if it is constant. written: the value in a command line, before expansion.
    """

    entry: find.Entry | None
    name: str
    value: Any
    text: str
    place: str
    computed: str = ""
    written: str = ""


@dataclass(frozen=True)
class Remark:
    """Something that does not become a setting. is_warning: the user has to act; otherwise it is not needed.

    Long texts and reasons are shortened at once, since thousands of remarks may quote the same long line.
    """

    text: str
    place: str
    reason: str
    is_warning: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", shortened(self.text, SHOWN))
        object.__setattr__(self, "reason", shortened(self.reason, _LONGEST_REASON))


@dataclass
class Source:
    """A configuration.

    variables: names of environment variables that it sets. hooks: the lines of gunicorn's hooks, by their names. files:
    the configuration files that a command line names, and whose options are among `given`.
    """

    server: Server
    title: str
    given: list[Given] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    hooks: dict[str, list[str]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def read(path: Path) -> bytes:
    """The content of a file. Raises ConfigError, also if it cannot be a configuration."""
    try:
        # Not a pipe or a device, whose data may never end.
        is_file = stat.S_ISREG(os.stat(path).st_mode)
        content = _content(path) if is_file else b""
    except BlockingIOError:
        # Such as /proc/kmsg, which is a regular file by its mode.
        raise ConfigError(f"{path}: more content keeps arriving, so not a configuration") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not is_file:
        raise ConfigError(f"{path}: not a regular file")
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: larger than 1 MiB, so not a configuration")
    if b"\0" in content:
        raise ConfigError(f"{path}: a binary file, so not a configuration")
    return content


def _content(path: Path) -> bytes:
    """The bytes of a file, up to one more than are accepted. Raises OSError, and BlockingIOError instead of waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        content = b""
        while len(content) <= _LARGEST and (more := os.read(descriptor, _LARGEST + 1 - len(content))):
            content += more
        return content
    finally:
        os.close(descriptor)


def text(content: bytes, path: Path) -> str:
    """The text of a file. Raises ConfigError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not UTF-8 (at line {line}); convert it with `iconv`") from None


def lines(text: str) -> list[str]:
    """The lines of a file as other servers read them: not ended by what else ends a line of text, such as U+2028."""
    return text.split("\n")
