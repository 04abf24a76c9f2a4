"""Reads a command line of another server from a shell, a Procfile or a service. Nothing in it is executed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tailrace.cli.options import OPTIONS
from tailrace.errors import ConfigError
from tailrace_tools.migrate import gunicorn_file, uwsgi_file
from tailrace_tools.migrate.source import CPUS, UNSET, Given, Remark, Source
from tailrace_tools.other_servers import find
from tailrace_tools.other_servers.rows import Name, Server

_COMMANDS: Final = {
    "gunicorn": Server.GUNICORN,
    "gunicorn.app.wsgiapp": Server.GUNICORN,
    "uwsgi": Server.UWSGI,
    "granian": Server.GRANIAN,
    "waitress-serve": Server.WAITRESS,
    "waitress": Server.WAITRESS,
    "mod_wsgi-express": Server.MOD_WSGI,
}
# First words of commands that only mention a server.
_MENTIONS: Final = re.compile(
    r"(pip3?|apt|apt-get|apk|yum|dnf|conda|echo|printf|pkill|killall|systemctl|service|supervisorctl|which|type|test|"
    r"\[\[?|cp|mv|rm|mkdir|ln|touch|chown|chmod|cat|tail|grep|cd|ls|kill|export|FROM|COPY|ADD)\s"
)
_INSTALLS: Final = re.compile(r"(\S+ ){1,3}(install|add|wheel)\s")
_SHELL: Final = re.compile(r"(.*/)?(ba|da|z|a|k)?sh")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPERATOR: Final = re.compile(r"[<>|&;]+")
_REFERENCE: Final = re.compile(r"\$\{(?P<braced>\w+)(?::?-(?P<default>[^}]{0,1000}))?\}|\$(?P<name>\w+)")
# Prefixes of commands in a Procfile, and in a service.
_LABEL: Final = re.compile(
    r"(web|release|worker|app|ExecStart|command|CMD|ENTRYPOINT)\s*[:=]\s+?(?=\S)|ExecStart=[-@:+!]*|(CMD|ENTRYPOINT)\s+"
)
_SUBSTITUTION: Final = re.compile(r"`[^`]*`|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_COUNTS_CPUS: Final = re.compile(r"nproc|_NPROCESSORS_ONLN|cpuinfo|cpu_count")
# Variables that Tailrace itself reads from the environment.
_READ_ANYWAY: Final = frozenset(option.platform_variable.name for option in OPTIONS if option.platform_variable)
_FIRST_PLACEHOLDER: Final = 0xE000
_MAX_PLACEHOLDERS: Final = 100
_MAX_FILES: Final = 10
_LONGEST: Final = 65536


def parse(text: str, variables: Mapping[str, str] | None = None, directory: Path = Path()) -> Source:
    """The options of a command line. variables: the defaults of its environment variables.
    directory: its working directory. Raises ConfigError."""
    if len(text) > _LONGEST:
        raise ConfigError("the command line is longer than 64 KiB")
    words, substituted = _words(from_json(_LABEL.sub("", text.strip(), count=1)))
    commands = list(_commands(words))
    for words in commands:
        if (inner := _of_shell(words)) is not None:
            return parse(inner, variables, directory)
        if only_mentions(shlex.join(words)):
            continue
        for place, word in enumerate(words):
            server = _COMMANDS.get(word.rpartition("/")[2])
            if server is not None:
                reader = _Reader(server, substituted, variables or {}, directory)
                for others in commands:
                    if others is not words and others:
                        reason = "this is another command: keep it unchanged"
                        reader.remark(shlex.join(others), reason, is_warning=False)
                reader.read(words[:place], words[place + 1 :])
                return reader.found
    known = ", ".join(dict.fromkeys(_COMMANDS))
    raise ConfigError(f"SOURCE is neither a file nor a command line of a known server: {known}")


def check(text: str) -> None:
    """Raises ConfigError if the text is too long, or no command line."""
    if len(text) > _LONGEST:
        raise ConfigError("the command line is longer than 64 KiB")
    _words(text)


def only_mentions(command: str) -> bool:
    """Whether a simple command names a server without starting it, such as `pip install gunicorn`."""
    return _MENTIONS.match(command) is not None or installs(command)


def installs(command: str) -> bool:
    """Whether a simple command installs packages."""
    return _INSTALLS.match(command) is not None


def _of_shell(words: list[str]) -> str | None:
    """The text that `sh -c TEXT` runs, if it starts a known server."""
    for place, word in enumerate(words[:-2]):
        if _SHELL.fullmatch(word) and re.fullmatch(r"-\w*c", words[place + 1]) and looks_like_one(words[place + 2]):
            return words[place + 2]
    return None


def from_json(text: str) -> str:
    """The command line from a JSON list, as in a Dockerfile, or the text itself."""
    words = json_list(text)
    return text if words is None else shlex.join(words)


def json_list(text: str) -> list[str] | None:
    """The words of a JSON list; None: it is none, which Docker takes for a command of a shell."""
    try:
        found = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    return [*map(str, found)] if isinstance(found, list) else None


def _words(text: str) -> tuple[list[str], dict[str, str]]:
    """The words of a shell command; and what stands for each substitution in them, which may contain spaces."""
    substituted: dict[str, str] = {}

    def keep(found: re.Match[str]) -> str:
        if len(substituted) >= _MAX_PLACEHOLDERS:
            raise ConfigError(f"the command line has more than {_MAX_PLACEHOLDERS} substitutions")
        character = chr(_FIRST_PLACEHOLDER + len(substituted))
        substituted[character] = found[0]
        return character

    lexer = shlex.shlex(_SUBSTITUTION.sub(keep, text.replace("\\\n", " ")), posix=True, punctuation_chars="<>|&;")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer), substituted
    except ValueError as error:
        raise ConfigError(f"the command line cannot be split into words: {str(error).lower()}") from None


def _commands(words: list[str]) -> Iterator[list[str]]:
    """The simple commands of a list or a pipeline, without redirections."""
    current: list[str] = []
    left = iter(words)
    for word in left:
        if not _OPERATOR.fullmatch(word):
            current.append(word)
        elif word[0] in "<>" or word.startswith("&>"):
            if current and current[-1] in ("1", "2"):
                current.pop()
            next(left, None)
        else:
            yield current
            current = []
    yield current


class _Reader:
    """One command of a server."""

    def __init__(
        self, server: Server, substituted: dict[str, str], variables: Mapping[str, str], directory: Path
    ) -> None:
        self.server = server
        self.substituted = substituted
        self.variables = variables
        self.directory = directory
        self.found = Source(server, "a command line")
        self.environment: dict[str, str] = {}
        self.files: list[Source] = []

    def remark(self, text: str, reason: str, *, is_warning: bool = True) -> None:
        self.found.remarks.append(Remark(self._written(text), "", reason, is_warning))

    def read(self, before: list[str], arguments: list[str]) -> None:
        """Reads the words before the server's name, and its arguments."""
        self._before(before)
        self._environment()
        if self.server is Server.MOD_WSGI and arguments[:1] == ["start-server"]:
            del arguments[0]
        positional = self._options(arguments)
        self._positional(positional)
        if self.server is Server.GUNICORN and not any(given.name in ("-c", "--config") for given in self.found.given):
            self._default_file()
        self.found.given = [given for given in self.found.given if not self._is_file(given)]
        for file in reversed(self.files):
            # The command line overrides a file.
            keys = {given.entry.name.key for given in self.found.given if given.entry}
            kept = [each for each in file.given if not (each.entry and self._replaces(each, keys))]
            self.found.given = kept + self.found.given
            self.found.remarks += file.remarks
            self.found.variables += file.variables
            self.found.hooks.update(file.hooks)
            self.found.files.append(file.title)

    def _replaces(self, given: Given, keys: set[str]) -> bool:
        # uWSGI accumulates repeated options.
        return self.server is Server.GUNICORN and given.entry is not None and given.entry.name.key in keys

    def _before(self, words: list[str]) -> None:
        wrapper: list[str] = []
        for word in words:
            assigned = _ASSIGNMENT.fullmatch(word)
            if assigned and not any(each not in ("env", "exec", "export") for each in wrapper):
                self.environment[assigned[1]] = assigned[2]
            else:
                wrapper.append(word)
        wrapper = [word for word in wrapper if word not in ("exec", "env", "export", "sudo", "nohup", "-E")]
        if wrapper and re.fullmatch(r"(.*/)?python[\d.]*", wrapper[-2:][0]) and wrapper[-1] == "-m":
            wrapper = wrapper[:-2]
        if wrapper:
            text = shlex.join(wrapper)
            self.remark(text, f"it also works in front of tailrace: `{self._written(text)} tailrace`", is_warning=False)

    def _environment(self) -> None:
        # The arguments in GUNICORN_CMD_ARGS override other variables.
        known = {name: value for name, value in self.variables.items() if name not in _READ_ANYWAY}
        given = {**known, **self.environment}
        for name, value in sorted(given.items(), key=lambda item: item[0] == "GUNICORN_CMD_ARGS"):
            if name == "GUNICORN_CMD_ARGS" and self.server is Server.GUNICORN:
                self._options(_words(value)[0])
            elif (entry := find.of(self.server, name)) is not None and entry.name.variable == name:
                self._given(entry, name, value, f"{name}={value}")
            elif name in self.environment and not name.startswith("TAILRACE_"):
                self.found.variables.append(name)

    def _options(self, arguments: list[str]) -> list[str]:
        """Reads the options, and returns the other arguments."""
        positional: list[str] = []
        left = list(reversed(arguments))
        while left:
            word = left.pop()
            if word == "--":
                return positional + left[::-1]
            if not word.startswith("-") or word == "-":
                positional.append(word)
            elif word.startswith("--"):
                spelling, equals, value = word.partition("=")
                self._option(spelling, [value] if equals else None, left)
            else:
                self._short(word, left)
        return positional

    def _short(self, word: str, left: list[str]) -> None:
        """`-w4`, `-w 4`, or several switches in one word."""
        for place, letter in enumerate(word[1:], 2):
            entry = find.of(self.server, f"-{letter}")
            is_switch = entry is not None and entry.name.values == 0
            if not is_switch and place < len(word):
                self._option(f"-{letter}", [word[place:].removeprefix("=")], left)
                return
            self._option(f"-{letter}", None, left)

    def _option(self, spelling: str, values: list[str] | None, left: list[str]) -> None:
        entry = find.of(self.server, spelling)
        name = entry.name if entry else Name((), None, (), "")
        wanted = name.values or 0
        if values is None:
            values = []
            while len(values) < wanted and left:
                values.append(left.pop())
            if name.values is None and left and not left[-1].startswith("-"):
                # An optional value; the last word is the application.
                values = [left.pop()] if len(left) > 1 else []
        text = self._written(shlex.join([spelling, *values]))
        if entry is not None and find.is_negated(entry, spelling):
            self.found.given.append(Given(entry, spelling, False, text, ""))
        elif name.values == 0 or not values:
            self.found.given.append(Given(entry, spelling, True, text, ""))
        elif wanted == 2:
            self.found.given.append(Given(entry, spelling, values, text, ""))
        else:
            self._given(entry, spelling, values[0], text)

    def _given(self, entry: find.Entry | None, spelling: str, value: str, text: str) -> None:
        known, computed = self._value(value)
        written = self._written(value)
        self.found.given.append(Given(entry, spelling, known, self._written(text), "", computed, written))

    def _value(self, text: str) -> tuple[object, str]:
        """A value whose substitutions are done as far as they are known; and what it depends on."""
        commands = [self.substituted[each] for each in text if each in self.substituted]
        if commands:
            if all(_COUNTS_CPUS.search(each) for each in commands):
                return CPUS, "it depends on the number of CPUs"
            return UNSET, f"it depends on {'a command' if commands[0][2:3] != '%' else 'a specifier of systemd'}"
        depends: list[str] = []
        unknown: list[str] = []

        def replace(found: re.Match[str]) -> str:
            name = found["braced"] or found["name"]
            if name in self.environment:
                return self.environment[name]
            depends.append(f"${name}")
            default: str | None = self.variables.get(name, found["default"])
            if default is None:
                unknown.append(name)
            return default or ""

        value = _REFERENCE.sub(replace, text)
        computed = f"it depends on {' and '.join(dict.fromkeys(depends))}" if depends else ""
        return (UNSET if unknown else value), computed

    def _positional(self, words: list[str]) -> None:
        if self.server is Server.UWSGI:
            for word in words:
                if re.search(r"\.(ini|ya?ml|json|xml)(:\w+)?$", word):
                    self._uwsgi_file(word)
                else:
                    entry = find.of(self.server, "wsgi-file" if word.endswith((".py", ".wsgi")) else "module")
                    self._given(entry, "APPLICATION", word, word)
            return
        for word in words[1:]:
            self.remark(word, "unexpected argument after the application")
        if words:
            spelling = {Server.GUNICORN: "wsgi_app"}.get(self.server, "entry_point")
            entry = find.of(self.server, spelling) or find.of(Server.GUNICORN, "wsgi_app")
            word = words[0]
            if self.server is Server.MOD_WSGI:
                callables = [given.value for given in self.found.given if given.name == "--callable-object"]
                word = f"{word}:{callables[-1]}" if callables and isinstance(callables[-1], str) else word
            self._given(entry, "APPLICATION", word, words[0])

    def _is_file(self, given: Given) -> bool:
        """Reads the file that an option names; whether it is one."""
        if not isinstance(given.value, str):
            return False
        if self.server is Server.GUNICORN and given.name in ("-c", "--config"):
            name = given.value.removeprefix("file:")
            if name.startswith("python:"):
                name = name.removeprefix("python:").replace(".", "/") + ".py"
            return self._read(given.text, lambda: gunicorn_file.read(self.directory / name))
        flags = ("--ini", "--yaml", "--yml", "-y", "--json", "-j", "--xml", "-x", "--config", "--include", "--inherit")
        if self.server is Server.UWSGI and given.name in flags:
            return self._uwsgi_file(given.value)
        return False

    def _uwsgi_file(self, word: str) -> bool:
        name, colon, section = word.partition(":")
        return self._read(
            word, lambda: uwsgi_file.read(self.directory / name, section if colon and section else "uwsgi")
        )

    def _read(self, text: str, reader: Callable[[], Source]) -> bool:
        if len(self.files) >= _MAX_FILES:
            raise ConfigError(f"the command line names more than {_MAX_FILES} files")
        try:
            self.files.append(reader())
        except ConfigError as error:
            self.remark(text, f"the file is not read: {str(error).partition(': ')[2] or error}")
        return True

    def _default_file(self) -> None:
        """gunicorn reads ./gunicorn.conf.py by default."""
        path = self.directory / "gunicorn.conf.py"
        if path.is_file():
            self._read(str(path), lambda: gunicorn_file.read(path))
            self.remark(
                str(path), "gunicorn reads it from the current directory; its settings are included", is_warning=False
            )

    def _written(self, text: str) -> str:
        """The text with its substitutions as they were written."""
        return "".join(self.substituted.get(each, each) for each in text)


def looks_like_one(text: str) -> bool:
    """Whether SOURCE looks like a command line, and not like a file name."""
    return any(word.rpartition("/")[2] in _COMMANDS for word in re.split(r"""[\s"',\[\]]+""", text))
