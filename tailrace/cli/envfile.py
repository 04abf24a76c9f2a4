"""Variables from the file of `--env-file`: `NAME=value` a line, with quotes, `export` and comments, as in a shell.

Variables that the environment has already stay as they are, so that a variable given for one start is stronger than the
file. `$` has no meaning, since passwords may contain it. The file is read when the server starts, for the options of
Tailrace, and by each worker before it loads the application, so that a reload reads changes of the file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Final

from tailrace.errors import ConfigError

# Maximum length of the file, in characters.
_MAX_CHARACTERS: Final = 1 << 20


def read(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the file that `environ` does not have. Raises ConfigError for a line that is no variable."""
    # Imported here because most servers start without it.
    from dotenv.parser import parse_stream

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
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
        is_hidden = os.geteuid() != self._user and not os.access(self._path, os.R_OK)
        os.environ.update(self._first if is_hidden else read(self._path, os.environ))
