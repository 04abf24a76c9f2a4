"""`tailrace migrate DIRECTORY`: the lines of a project that start another server, each with its replacement.

Files are read, never written. A line that cannot be read is in the report with its number.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tailrace.cli.options import BY_NAME, OPTIONS
from tailrace.errors import ConfigError
from tailrace.printable import printable
from tailrace_tools.migrate import command_line, main, rewrite, show, source, start_lines
from tailrace_tools.migrate.convert import convert
from tailrace_tools.migrate.start_lines import Line

_SKIPPED: Final = re.compile(
    r"\.(git|hg|svn|venv|tox|nox|terraform|\w+_cache)|venv|node_modules|__pycache__|site-packages"
)
_MAX_DEPTH: Final = 8
_MAX_FILES: Final = 50_000
# Lines that start a server, in a file and in the project.
_MAX_STARTS: Final = 100
_MAX_PLACES: Final = 1000
# Characters of a line that the report shows, and lines of a file that start no command.
_SHOWN: Final = 400
_MAX_NAMED: Final = 20
_COMPOSE: Final = re.compile(r"(docker-)?compose[\w.-]*\.ya?ml")
_GUNICORN_FILE: Final = re.compile(r"gunicorn[\w.-]*\.py")
_REQUIREMENTS: Final = re.compile(r"[\w.-]*requirements[\w.-]*\.(txt|in)|Pipfile|pyproject\.toml|setup\.(cfg|py)")
# Files in which a line that names a server may start it, although nothing reads it.
_OTHERS: Final = (
    ".yaml",
    ".yml",
    ".conf",
    ".ini",
    ".cfg",
    ".json",
    ".tf",
    ".hcl",
    ".tpl",
    ".j2",
    ".mk",
    ".env",
    ".nix",
)
# Characters of a line that may name a package or a server.
_LONGEST: Final = 10_000
_OTHER_NAMES: Final = ("Makefile", "makefile", "justfile", "Justfile", ".env", "Jenkinsfile", "Tiltfile", "Vagrantfile")
_ONLY_NAMES: Final = re.compile(
    r"[\s-]*(\[|[\w./-]*(name|image|app|service|component|part-of|description|identifier|directory)\"?\s*[:=]|(upstream|server)\b)",
    re.IGNORECASE,
)
_NAMED: Final = re.compile(rf"""(?<![^\s"'=/,\[])({rewrite.SERVERS})(?![^\s"',\]])""")
_PACKAGE: Final = re.compile(
    r"(?P<before>^\s*|[\s\"'])(?:gunicorn|uwsgi|pyuwsgi|granian|waitress|mod[-_]wsgi)(?:\[(?P<extras>[\w ,-]*)\])?"
    r"(?P<poetry>\s*=\s*(?=[\"'{]).*)?"
    r"(?(poetry)|(?:\s?[=<>~!^]=*\s?[\w.*+-]+(?:,\s?[=<>~!^]=*\s?[\w.*+-]+)*)?(?=[\s\"',;\\]|$))",
    re.IGNORECASE,
)
_EXTRAS: Final = ("gevent", "reload")
# The path of a settings file.
_ABSOLUTE: Final = re.compile(
    r"(?P<flag>(?:-c|--config)(?:=|\s+)(?:file:)?)?(?<![\w.$}/-])(?P<path>/[\w./-]+\.\w+)(?![\w/])"
)
# Variables that Tailrace reads as the other servers do.
_PLATFORM: Final = frozenset(option.platform_variable.name for option in OPTIONS if option.platform_variable)
_NO_APPLICATION: Final = "no application is named"


@dataclass
class _Found:
    """A place of the project for the report. lines and replaced: before and after; by_hand: what remains to be done."""

    file: str
    number: int
    lines: list[str]
    replaced: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)


def report(root: Path) -> str:
    """The lines of the project with their replacements. Raises ConfigError if no file names a server."""
    project = _Project(root)
    for path in project.files():
        project.read(path)
    return project.report()


class _Project:
    """Collects what the files have. settings: configuration files, with the lines whose commands read them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.starts: list[_Found] = []
        self.packages: list[_Found] = []
        self.unread: list[_Found] = []
        self.settings: dict[str, list[str]] = {}
        self.scripts: set[str] = set()
        self.named: list[tuple[str, Line]] = []
        self.problems: list[str] = []

    def files(self) -> Iterator[Path]:
        """The regular files, without those of environments and packages. Links to directories are not followed."""
        count = 0
        for folder, folders, names in os.walk(self.root, onerror=self._unreadable):
            here = Path(folder)
            folders[:] = sorted(each for each in folders if not _SKIPPED.fullmatch(each))
            folders[:] = [each for each in folders if not os.path.exists(here / each / "pyvenv.cfg")]
            if folders and len(here.relative_to(self.root).parts) >= _MAX_DEPTH:
                self.problems.append(
                    f"{self._shown(here)}: folders below it are not searched, more than {_MAX_DEPTH} deep"
                )
                folders.clear()
            for name in sorted(names):
                count += 1
                places = len(self.starts) + len(self.packages) + len(self.unread) + len(self.settings)
                if count > _MAX_FILES or places > _MAX_PLACES:
                    self.problems.append(f"the search ended after {count - 1:,} files; name a smaller folder")
                    return
                yield here / name

    def _unreadable(self, error: OSError) -> None:
        self.problems.append(f"{self._shown(Path(error.filename))}: cannot be read: {error.strerror}")

    def _shown(self, path: Path) -> str:
        return printable(os.path.normpath(path))

    def read(self, path: Path) -> None:
        """Reads a file by its name; a file without a suffix may be a script."""
        name, suffix = path.name, path.suffix.lower()
        if _GUNICORN_FILE.fullmatch(name):
            self.settings.setdefault(os.path.normpath(path), [])
            return
        is_package = bool(_REQUIREMENTS.fullmatch(name)) or (suffix == ".txt" and path.parent.name == "requirements")
        is_read = start_lines.is_dockerfile(path) or ".service" in name or name.startswith("Procfile")
        is_other = suffix in _OTHERS or name in _OTHER_NAMES or is_package
        if not (is_read or is_other or suffix in ("", ".sh", ".bash")):
            return
        try:
            text = source.text(source.read(path), path)
            is_script = suffix in (".sh", ".bash") or re.match(r"#!.*\b(ba|da|z|a|k)?sh\b", text) is not None
            if suffix == ".ini" and re.search(r"^\s*\[uwsgi\]", text, re.MULTILINE):
                self.settings.setdefault(os.path.normpath(path), [])
            elif is_read or is_other or is_script:
                self._lines(path, text, is_script=is_script, is_package=is_package)
        except ConfigError as error:
            if is_read or is_other or suffix:
                self.problems.append(printable(str(error).replace(str(path), self._shown(path))))

    def _lines(self, path: Path, text: str, *, is_script: bool, is_package: bool) -> None:
        file = self._shown(path)
        lines: list[Line] = []
        if start_lines.is_dockerfile(path):
            stages = start_lines.dockerfile(text, path)
            lines = [line for stage in stages for line in start_lines.together(stage)]
            self.named += [(file, line) for line in lines]
        elif ".service" in path.name:
            lines = start_lines.unit(text, path)
        elif path.name.startswith("Procfile"):
            lines = list(start_lines.procfile(text))
        elif _COMPOSE.fullmatch(path.name):
            lines = list(start_lines.compose(text))
        elif is_script:
            self.scripts.add(path.name)
            lines = list(start_lines.script(text))
        covered: set[int] = set()
        starts = [line for line in lines if command_line.looks_like_one(line.command)]
        if len(starts) > _MAX_STARTS:
            self.problems.append(f"{file}: only the first {_MAX_STARTS} commands are read")
        for line in starts[:_MAX_STARTS]:
            if self._start(path, file, line):
                covered.update(range(line.number, line.last + 1))
        self._rest(file, text, covered, is_package=is_package)

    def _start(self, path: Path, file: str, line: Line) -> bool:
        """Adds the line with its replacement; False: it starts no known server."""
        found = _Found(file, line.number, line.written.split("\n"))

        def arguments(command: str) -> list[str]:
            return self._arguments(path, line, line.understood(command), found)

        try:
            found.replaced = rewrite.line(line, arguments)
        except ConfigError as error:
            found.by_hand.append(str(error))
        if not found.replaced and not found.by_hand:
            return False
        self.starts.append(found)
        return True

    def _arguments(self, path: Path, line: Line, command: str, found: _Found) -> list[str]:
        """The arguments of `tailrace` for a server's command. Raises ConfigError."""
        command, originals = self._local(command)
        for directory in (*([Path(line.directory)] if line.directory else []), path.parent, self.root):
            parsed = command_line.parse(command, line.variables, directory)
            if parsed.files:
                break
        # Assignments in front of the command stay there.
        parsed.variables = [each for each in parsed.variables if f"{each}=" not in command]
        made = convert(parsed, keeps_references=True)
        files, known, ours = [], set(), {}
        for each in parsed.files:
            local = next((local for local in originals if each.startswith(local)), "")
            here, there = originals.get(local, ("", ""))
            file = os.path.normpath(here + each[len(local) :])
            files.append(there + each[len(local) :])
            self.settings.setdefault(file, []).append(f"{found.file}:{found.number}")
            of_file = convert(main.read(file))
            known.update(show.warnings(of_file))
            ours.update(of_file.settings)
        found.by_hand += [each for each in show.warnings(made) if each not in known]
        for name in sorted(ours.keys() - made.settings.keys() - (made.references or {}).keys()):
            found.by_hand.append(f"remove `{name}` from tailrace.toml, since this command overrides it")
        for name, values in (made.references or {}).items():
            variables = sorted({each for value in values for each in re.findall(r"\$\{?(\w+)", value)} - _PLATFORM)
            if unset := [each for each in variables if each not in line.variables]:
                found.by_hand.append(
                    f"${', $'.join(unset)}: check the value, which is now that of {BY_NAME[name].flag}"
                )
        return rewrite.arguments(made, ours, files, directory)

    def _local(self, command: str) -> tuple[str, dict[str, tuple[str, str]]]:
        """The command with the project's settings files instead of their paths in a container; and by the absolute path
        of each such file, its path in the project and in the container."""
        originals: dict[str, tuple[str, str]] = {}

        def local(found: re.Match[str]) -> str:
            parts = found["path"].split("/")[1:]
            is_named = found["flag"] or found["path"].endswith(".ini")
            for at in range(len(parts) if is_named and not os.path.exists(found["path"]) else 0):
                if os.path.isfile(here := self.root.joinpath(*parts[at:])):
                    originals[os.path.abspath(here)] = (str(here), found["path"])
                    return f"{found['flag'] or ''}{shlex.quote(os.path.abspath(here))}"
            return found[0]

        return _ABSOLUTE.sub(local, command), originals

    def _rest(self, file: str, text: str, covered: set[int], *, is_package: bool) -> None:
        """Names the other lines that may start a server, or install one."""
        packages: list[_Found] = []
        unread: list[_Found] = []
        for number, line in enumerate(source.lines(text), 1):
            line = line.strip()
            if number in covered or line[:1] in ("", "#", ";") or line.startswith("//") or len(line) > _LONGEST:
                continue
            if is_package or command_line.installs(line):
                if _PACKAGE.search(line) and not re.match(r"(name|description|keywords)\b", line):
                    packages.append(_package(file, number, line))
            elif variable := re.search(r"\b(GUNICORN_CMD_ARGS|(GRANIAN|UWSGI)_[A-Z_]+)(?=\s*[:=])", line):
                reason = f"Tailrace ignores {variable[0]}: remove the line once its options are in the command"
                unread.append(_Found(file, number, [line], by_hand=[reason]))
            elif _NAMED.search(line) and not (_ONLY_NAMES.match(line) or command_line.only_mentions(line)):
                reason = "not read: change it yourself; `tailrace migrate 'COMMAND'` converts a command"
                unread.append(_Found(file, number, [line], by_hand=[reason]))
        self.unread += unread[:_MAX_NAMED]
        self.packages += packages[:_MAX_NAMED]
        if more := len(unread[_MAX_NAMED:]) + len(packages[_MAX_NAMED:]):
            self.problems.append(f"{file}: {more} more lines name a server")

    def report(self) -> str:
        """The text. Raises ConfigError if there is nothing to report."""
        for file, line in self.named:
            name = re.sub(r"(exec\s+)?(\S*/)?([^\s/]*).*", r"\3", line.command.strip(), flags=re.DOTALL)
            if name.startswith("supervisord") or (name.endswith(".sh") and name not in self.scripts):
                reason = f"not read: {name} starts the server from a file that this command does not read"
                self.unread.append(_Found(file, line.number, [line.written], by_hand=[reason]))
        settings = [self._setting(path, readers) for path, readers in sorted(self.settings.items())]
        found = [*self.starts, *filter(None, settings), *self.packages, *self.unread]
        if not found:
            said = "".join(f"; {each}" for each in self.problems[:3])
            raise ConfigError(f"no file in {printable(str(self.root))} starts another server{said}")
        lines = [line for each in found for line in (*_shown(each), "")]
        lines += [f"not read: {each}" for each in self.problems]
        changed = sum(bool(each.replaced) for each in found)
        noun = "place" if changed == 1 else "places"
        return "\n".join(
            [*lines, f"{changed} {noun} to change, {len(found) - changed} to look at. No file was changed."]
        )

    def _setting(self, path: str, readers: list[str]) -> _Found | None:
        file = printable(path)
        found = _Found(file, 1, [os.path.basename(file)], ["tailrace.toml"])
        try:
            warnings = show.warnings(convert(main.read(path)))
        except ConfigError as error:
            self.problems.append(printable(str(error)))
            return None
        found.by_hand = [each for each in warnings if _NO_APPLICATION not in each]
        made = shlex.quote(printable(os.path.join(os.path.dirname(file), "tailrace.toml")))
        found.by_hand.insert(0, f"run `tailrace migrate {shlex.quote(file)} > {made}`")
        if not readers:
            found.by_hand.append("no command reads it: start `tailrace` where tailrace.toml is")
        return found


def _package(file: str, number: int, line: str) -> _Found:
    """A line that names the server's package."""

    def ours(found: re.Match[str]) -> str:
        extras = [each for each in re.split(r"[ ,]+", found["extras"] or "") if each in _EXTRAS]
        name = f"tailrace[{','.join(extras)}]" if extras else "tailrace"
        return f"{found['before']}{name}{' = ' + chr(34) + '*' + chr(34) if found['poetry'] else ''}"

    replaced = _PACKAGE.sub(ours, line)
    by_hand = []
    if line.endswith("\\") and "install" not in line:
        replaced, by_hand = replaced.rstrip("\\ "), ["the file has hashes: generate it again"]
    return _Found(file, number, [line], [replaced], by_hand)


def _shown(found: _Found) -> Iterator[str]:
    yield f"{found.file}:{found.number}" if found.lines != [os.path.basename(found.file)] else found.file
    for sign, lines in (("-", found.lines), ("+", found.replaced)):
        for line in lines:
            # Of a line that has no replacement, nothing is removed.
            shown = source.shortened(printable(line.replace("\t", " ").replace("\n", " ")), _SHOWN)
            yield f"  {sign if found.replaced else '?'} {shown}"
    for each in dict.fromkeys(found.by_hand):
        yield f"  by hand: {printable(source.shortened(each, 2 * _SHOWN))}"
