"""`tailrace migrate`: from SOURCE to the text of a tailrace.toml and warnings."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tailrace.errors import ConfigError
from tailrace_tools.migrate import command_line, gunicorn_file, show, source, start_lines, uwsgi_file
from tailrace_tools.migrate.convert import convert
from tailrace_tools.migrate.source import Source

_UWSGI: Final = (".ini", ".yaml", ".yml", ".json", ".js", ".xml")
_SECTION: Final = re.compile(r"(.+\.ini):([\w-]+)")
# A file without a telling suffix.
_HAS_SECTION: Final = re.compile(rb"^[ \t]*\[[\w:-]+\]", re.MULTILINE)


def run(given: str) -> tuple[str, list[str]]:
    """The text and the warnings. Raises ConfigError for what cannot be read."""
    if "\0" in given:
        raise ConfigError("SOURCE contains a NUL character")
    made = convert(read(given))
    text = show.as_toml(made)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("SOURCE is not UTF-8; convert it with `iconv`") from None
    return text, show.warnings(made)


def read(given: str) -> Source:
    """The options of SOURCE. Raises ConfigError."""
    found = _SECTION.fullmatch(given)
    if found and not os.path.exists(given):
        return uwsgi_file.read(Path(found[1]), found[2])
    path = Path(given)
    if not given or not _stands(path):
        if not command_line.looks_like_one(given):
            missing = "no such file" if "/" in given or "." in given else "neither a file nor a command line"
            raise ConfigError(
                f"{given[:200]!r}: {missing}; name gunicorn.conf.py, uwsgi.ini or a command such as "
                "'gunicorn mysite.wsgi'"
            )
        return command_line.parse(given)
    if path.suffix.lower() == ".py":
        return gunicorn_file.read(path)
    if path.suffix.lower() in _UWSGI:
        return uwsgi_file.read(path)
    content = source.read(path)
    if start_lines.is_dockerfile(path):
        stage = start_lines.dockerfile(source.text(content, path), path)[-1]
        return start_lines.read(path, start_lines.together(stage), "CMD and ENTRYPOINT do not start a known server")
    if b"[Service]" in content and start_lines.is_unit(text := source.text(content, path)):
        return start_lines.read(path, start_lines.unit(text, path), "ExecStart= does not start a known server")
    if _HAS_SECTION.search(content):
        return uwsgi_file.parse(content, path)
    if path.name.startswith("Procfile"):
        found_lines = list(start_lines.procfile(source.text(content, path)))
        return start_lines.read(path, found_lines, "no line starts a known server")
    return gunicorn_file.parse(content, given)


def _stands(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a command line that is too long for a name
        return False
