"""Replaces another server's commands in a line by those of Tailrace, and leaves the rest of the line unchanged."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tailrace.cli.option import Option
from tailrace.cli.options import OPTIONS
from tailrace_tools.migrate import command_line
from tailrace_tools.migrate.convert import Migrated, Setting
from tailrace_tools.migrate.start_lines import Form, Line

# From the command of a server to the arguments of `tailrace`.
Arguments = Callable[[str], list[str]]

SERVERS: Final = r"gunicorn(?:\.app\.wsgiapp)?|uwsgi|granian|waitress-serve|waitress|mod_wsgi-express"
_SERVER: Final = re.compile(rf"""(?<![^\s"'/])({SERVERS})(?![^\s"'])""")
# A simple command of a shell, up to an operator, a redirection or a comment.
_COMMAND: Final = re.compile(
    r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|"""
    r"""(?!\s[012]?[<>]|\s\#)[^'"<>|&;\n\\])+""",
    re.DOTALL,
)
_SHELL: Final = re.compile(
    r"""(\b(?:ba|da|z|a|k)?sh\s+(?:-\w+\s+)?-\w*c\s+)("(?:\\.|[^"\\])*"|'(?:[^']|'\\'')*')""", re.DOTALL
)
# All arguments of a script.
_ALL: Final = re.compile(r"""\s"?\$[@*]"?(?=\s|$)""")
_IGNORED: Final = re.compile(r"""\b(GUNICORN_CMD_ARGS|GRANIAN_\w+|UWSGI_\w+)=(?:[^\s'"]|'[^']*'|"[^"]*")*\s*""")
_PLAIN: Final = re.compile(r"[\w./:@%+,=-]+")
# A variable that needs no quotes if it had none.
_VARIABLE: Final = re.compile(r"[\w./:@%+,=${}-]+")


class _Reference(str):
    """A value with variables, which a shell expands."""


def line(found: Line, arguments: Arguments) -> list[str]:
    """The lines that replace one; empty: it starts no known server. Raises ConfigError."""
    words = command_line.json_list(found.value)
    value = _exec(words, found.form, arguments) if words else _shell(found.value, found.form, arguments)
    if value == found.value:
        return []
    if "\n" in found.written:  # ENTRYPOINT and CMD
        words = json.loads(value)
        return [f"{found.key}{json.dumps(words[:1])}", f"CMD {json.dumps(words[1:])}"]
    is_text = found.form is Form.COMPOSE and not words
    is_quoted = is_text and re.search(r": |\s#|^[\"'&*!{]|\n", value) is not None
    return [found.key + (json.dumps(value, ensure_ascii=False) if is_quoted else value)]


def arguments(made: Migrated, ours: dict[str, Setting], files: list[str], directory: Path) -> list[str]:
    """The arguments of `tailrace`. ours: the settings in a tailrace.toml, made from these files; directory: the working
    directory."""
    return [*_application(made), *_config(files, directory), *_flags(made, ours)]


def _application(made: Migrated) -> Iterator[str]:
    for each in (made.references or {}).get("app", ()):
        yield _Reference(each)
    if "app" in made.settings:
        yield made.settings["app"].value


def _config(files: list[str], directory: Path) -> Iterator[str]:
    """The option for a settings file that does not stand in the working directory."""
    for file in files[:1]:
        is_elsewhere = os.path.isabs(file) and not directory.is_absolute()
        path = Path(file if is_elsewhere else os.path.relpath(file, directory)).with_name("tailrace.toml")
        if path != Path("tailrace.toml"):
            yield from ("--config", str(path))


def _flags(made: Migrated, ours: dict[str, Setting]) -> Iterator[str]:
    """The options that the settings file does not set to the same value."""
    for option in OPTIONS:
        for each in (made.references or {}).get(option.name, ()) if not option.positional else ():
            yield from (option.flag, _Reference(each))
        setting = made.settings.get(option.name)
        if setting is None or option.positional or _is_default(option.name, setting):
            continue
        value = setting.value
        if option.name in ours and ours[option.name].value == value:
            continue
        if isinstance(value, bool):
            yield option.flag if value else f"--no-{option.flag[2:]}"
        elif isinstance(value, list):
            yield from (word for each in _fewest(option, value) for word in (option.flag, each))
        else:
            yield from (option.flag, f"{value:g}" if isinstance(value, float) else str(value))


def _fewest(option: Option, value: list[str]) -> list[str]:
    """A list in one word, if the option splits that."""
    try:
        return [",".join(value)] if option.kind.read([",".join(value)]) == option.kind.read(value) else value
    except ValueError:
        return value


def _is_default(name: str, setting: Setting) -> bool:
    # A server that listens only on this machine trusts it anyway.
    return name == "trusted_proxies" and setting.origins == ["the default"] and len(setting.comments) == 1


def _exec(words: list[str], form: Form, arguments: Arguments) -> str:
    """The JSON list with the server replaced."""
    for place, word in enumerate(words):
        if place and re.fullmatch(r"-\w*c", words[place - 1]) and command_line.looks_like_one(word) and " " in word:
            words[place] = _shell(word, form, arguments)
            break
        if (found := _SERVER.search(word)) and found.end() == len(word):
            words[place:] = [f"{word[: found.start()]}tailrace", *arguments(shlex.join(words))]
            break
    return json.dumps(words, ensure_ascii=False)


def _shell(text: str, form: Form, arguments: Arguments) -> str:
    """The text with each server in it replaced, and the rest unchanged. Raises ConfigError."""
    command_line.check(text)

    def inner(found: re.Match[str]) -> str:
        mark, body = found[2][0], found[2][1:-1]
        if mark == '"':
            body = _shell(re.sub(r'\\(["\\`])', r"\1", body), form, arguments)
            return found[1] + '"' + re.sub(r'(["\\`])', r"\\\1", body) + '"'
        body = _shell(body.replace("'\\''", "'"), form, arguments)
        return found[1] + "'" + body.replace("'", "'\\''") + "'"

    def one(found: re.Match[str]) -> str:
        command = found[0]
        server = _SERVER.search(command)
        if server is None or command_line.only_mentions(command.strip()):
            return command
        if _SHELL.search(command):
            return _SHELL.sub(inner, command)
        tail = command[len(command.rstrip()) :]
        words = [f"{_IGNORED.sub('', command[: server.start()])}tailrace"]
        words += [_quoted(each, form) for each in arguments(_ALL.sub("", command))]
        words += [each.strip() for each in _ALL.findall(command)]
        return " ".join(words) + tail

    return _COMMAND.sub(one, text)


def _quoted(word: str, form: Form) -> str:
    if isinstance(word, _Reference):
        return str(word) if form is Form.SYSTEMD or _VARIABLE.fullmatch(word) else f'"{word}"'
    if form is Form.SYSTEMD:
        word = word.replace("%", "%%").replace("$", "$$")
        return word if _PLAIN.fullmatch(word) else '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return shlex.quote(word.replace("$", "$$") if form is Form.COMPOSE else word)
