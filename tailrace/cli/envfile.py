"""Variables from the file of `--env-file`: `NAME=value` a line, with quotes, `export` and comments, as in a shell.

Variables that the environment has already stay as they are, so that a variable given for one start is stronger than the
file. `$` has no meaning, since passwords may contain it. The file is read when the server starts, for the options of
Tailrace, and by each worker before it loads the application, so that a reload reads changes of the file.

With --user, the new user may not be allowed to read the file. Then a reload and a new master have the variables that
the first master read before it changed the user.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Mapping
from typing import Final

from tailrace.errors import ConfigError
from tailrace.system import directory

# Maximum length of the file, in characters.
_MAX_CHARACTERS: Final = 1 << 20

# The variables that a former master read, by the absolute path of their file.
_inherited: Final[dict[str, dict[str, str]]] = {}


def inherit(descriptor: int) -> None:
    """Reads the variables from a former master, which are what `Variables.hidden` has returned there."""
    with open(descriptor, encoding="utf-8") as file, contextlib.suppress(ValueError):
        _inherited.update(json.load(file))


def read(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the file that `environ` does not have. If this user cannot read the file, those that a former
    master read. Raises ConfigError for a line that is no variable."""
    # Imported here because most servers start without it.
    from dotenv.parser import parse_stream

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        if _inherited and isinstance(error, OSError):
            # By its name: this user may not be allowed to follow its links.
            known = _inherited.get(os.path.join(directory.named(None), path))
            if known is not None:
                return {name: value for name, value in known.items() if name not in environ}
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"--env-file {path}: cannot be read: {reason}; check the path") from None
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"--env-file {path}: larger than {_MAX_CHARACTERS >> 20} MiB; check the path")
    found: dict[str, str] = {}
    for line in parse_stream(io.StringIO(text)):
        if line.key is None and not line.error:
            continue  # a comment, or nothing
        if line.error or line.value is None or "\0" in f"{line.key}{line.value}":
            # The message has the number and not the text, which may be a part of a password. The parser counts empty
            # lines before a statement as its part.
            text = line.original.string
            number = line.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            raise ConfigError(f"--env-file {path}, line {number}: not NAME=value; begin a comment with `#`")
        assert line.key is not None
        if line.key not in environ:
            found[line.key] = line.value
    return found


def environment(path: str | None) -> Mapping[str, str]:
    """The environment, with the variables that the file adds. path: None: there is no file. Raises ConfigError."""
    return os.environ if path is None else {**read(path, os.environ), **os.environ}


class Variables:
    """The variables that `--env-file` adds to the environment.

    The file is read before the user changes, since the new user may not be allowed to read it.
    """

    def __init__(self, path: str | None) -> None:
        self._path, self._user = path, os.geteuid()
        self._first = {} if path is None else read(path, os.environ)

    def apply(self) -> None:
        """Puts them into the environment as they are in the file now, if it can be read. Raises ConfigError."""
        if self._path is None:
            return
        os.environ.update(self._first if self._is_hidden(self._path) else read(self._path, os.environ))

    def hidden(self) -> str:
        """What a new master is to `inherit`, if the user has changed and cannot read the file; or empty."""
        if self._path is None or not self._is_hidden(self._path):
            return ""
        return json.dumps({self._path: self._first})

    def _is_hidden(self, path: str) -> bool:
        has_changed = os.geteuid() != self._user or path in _inherited
        return has_changed and not os.access(path, os.R_OK)
