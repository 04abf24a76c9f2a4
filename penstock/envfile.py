"""Variables from the file of `--env-file`: `NAME=value` a line, with quotes, `export ` and comments, as in a shell.

What the environment has already stays: a variable given for one start beats the file. `$` has no meaning: a password
may have one. The file is read when the server starts, for the options of Penstock itself, and by each worker before it
loads the application, so that a reload takes its changes in.
"""

from __future__ import annotations

from collections.abc import Mapping

from dotenv.parser import parse_stream

from penstock.errors import ConfigError


def read(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the file that `environ` does not have. Raises ConfigError for the first line that is none."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = list(parse_stream(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"env-file {path}: {reason}") from None
    found: dict[str, str] = {}
    for line in lines:
        if line.key is None and not line.error:
            continue  # a comment, or nothing
        if line.error or line.value is None or "\0" in f"{line.key}{line.value}":
            # The number and not the text, which may be half a password. Empty lines before belong to the statement.
            text = line.original.string
            number = line.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            raise ConfigError(f"env-file {path}, line {number}: not NAME=value; a `#` at its start makes it a comment")
        assert line.key is not None
        if line.key not in environ:
            found[line.key] = line.value
    return found
