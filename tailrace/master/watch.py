"""`--reload`, for development: a process that watches the files of the application.

The master must stay single-threaded, because it forks, and the library that watches has a thread. So a child of the
master watches, and writes a line of JSON to a pipe when files have changed. It ends with the master.

It watches the current directory, the directory of the application, and every directory of the module path that is not
an installation of Python (packages in editable mode are watched, too). In these it reports changes of files that Python
imports, except below hidden directories, the packages of a virtual environment, and caches. It also reports changes of
files that `--reload-include` names, but of none that it names after a `!`.

Thread: the main one, of the master and of the child.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from tailrace.errors import ConfigError
from tailrace.system import forks, signals
from tailrace.system.descriptors import is_at_end
from tailrace.system.title import set_title

# Milliseconds. A change is reported when nothing else has changed for one or two steps, since an editor may save
# several files.
_STEP: Final = 20
_LONGEST: Final = 100
_SUFFIXES: Final = (".py", ".so")
_IGNORED: Final = frozenset({"__pycache__", "site-packages", "node_modules"})
_WILDCARDS: Final = frozenset("*?[")


def check() -> None:
    """Raises ConfigError when files cannot be watched."""
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError(
            "--reload needs the package watchfiles, which is not installed; `pip install 'tailrace[reload]'`"
        )


def roots(application: str | None) -> list[str]:
    """The directories to watch, none inside another; `application` is what `--app` names."""
    found = [os.getcwd()]
    path = (application or "").partition(":")[0]
    if "/" in path or path.endswith((".py", ".wsgi")):
        found.append(os.path.dirname(os.path.abspath(path)))
    installed = {os.path.realpath(place) for place in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)}
    ours = str(Path(__file__).resolve().parent.parent.parent)
    for entry in sys.path:
        place = os.path.realpath(entry)
        if entry and os.path.isdir(place) and not any(_within(place, each) for each in (ours, *installed)):
            found.append(place)
    return _outermost(map(os.path.realpath, found))


def _outermost(places: Iterable[str]) -> list[str]:
    """These resolved directories without those inside another."""
    outer: list[str] = []
    for place in sorted(set(places)):
        if not any(_within(place, each) for each in outer):
            outer.append(place)
    return outer


class Pattern(NamedTuple):
    """Files of one `--reload-include`, without its `!`.

    root: the directory to watch, resolved. parts: what follows it, the parts of a glob; `**` is any number of
    directories. A directory that matches has all its files. Neither a wildcard nor such a directory stands for a name
    with a dot in front or for one of _IGNORED: editors and Python write such files all the time.
    """

    root: str
    parts: tuple[str, ...]

    def matches(self, path: str) -> bool:
        """Whether the file, of a resolved path, is meant."""
        return _within(path, self.root) and _matches(Path(path).relative_to(self.root).parts, self.parts)


def _matches(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not names:
        return all(part == "**" for part in parts)
    if not parts:
        return all(map(_is_plain, names))
    name, part = names[0], parts[0]
    if part == "**":
        return _matches(names, parts[1:]) or (_is_plain(name) and _matches(names[1:], parts))
    is_meant = fnmatchcase(name, part) and (_is_plain(name) or name == part or part.startswith("."))
    return is_meant and _matches(names[1:], parts[1:])


def _is_plain(name: str) -> bool:
    return not name.startswith(".") and name not in _IGNORED


def pattern(text: str) -> Pattern:
    """The files that a value of `--reload-include` names, from the current directory on."""
    parts = Path(os.path.abspath(text)).parts
    fixed = next((at for at, part in enumerate(parts) if _WILDCARDS & set(part)), len(parts))
    root = os.path.realpath(os.path.join(*parts[:fixed]))
    if fixed == len(parts) and not os.path.isdir(root):
        # A file, which need not be there yet.
        root, name = os.path.split(root)
        parts, fixed = (name,), 0
    return Pattern(root, parts[fixed:])


def watchable(text: str) -> Pattern:
    """The files of a `--reload-include`. Raises ConfigError where they cannot be watched."""
    found = pattern(text)
    said = f"--reload-include {text!r}:"
    if not os.path.isdir(found.root):
        raise ConfigError(f"{said} the directory {found.root} does not exist; create it, or correct the path")
    if found.root == "/":
        raise ConfigError(f"{said} every file on this machine would be watched; begin with a directory")
    return found


def _is_code(path: str, watched: Iterable[str]) -> bool:
    for root in watched:
        if _within(path, root):
            *directories, name = Path(path).relative_to(root).parts or ("",)
            return name.endswith(_SUFFIXES) and not name.startswith(".") and all(map(_is_plain, directories))
    return False


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def forget_bytecode(paths: Iterable[str]) -> None:
    """Removes the bytecode that Python has cached of these files.

    Python tells versions apart by the second of the change and the size, which two saves may have in common.
    """
    for path in paths:
        if path.endswith(".py"):
            with contextlib.suppress(OSError, NotImplementedError):
                os.unlink(importlib.util.cache_from_source(path))


@dataclass
class Watcher:
    """The watching process, for the master.

    pipe: readable when there are events; never blocks. The process alone has the other end: closed there, it has ended.
    """

    pid: int
    pipe: int
    _said: bytes = field(default=b"", repr=False)

    def read(self) -> list[Watching | Changed | Failed]:
        """The events since the last call."""
        while self.pipe >= 0:
            try:
                said = os.read(self.pipe, 65536)
            except BlockingIOError:
                break
            if not said:
                self._reap()
                return [Failed("its process has ended")]
            self._said += said
        *lines, self._said = self._said.split(b"\n")
        return [_EVENTS[kind](value) for line in lines for kind, value in json.loads(line).items()]

    def stop(self) -> None:
        """Ends it, and waits for its end."""
        if self.pipe < 0:
            return
        # A master that is process 1 reaps every child, after which another process may get the number. What still has
        # the pipe was not reaped.
        if not is_at_end(self.pipe):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def close(self) -> None:
        """Closes the pipe; also called in workers, which inherit it."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def _reap(self) -> None:
        self.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class Watching(NamedTuple):
    """The watching of these directories has begun."""

    directories: list[str]


class Changed(NamedTuple):
    """These files have changed."""

    paths: list[str]


class Failed(NamedTuple):
    """Files cannot be watched; why, in words."""

    reason: str


_EVENTS: Final[dict[str, Any]] = {"watching": Watching, "changed": Changed, "failed": Failed}


class Watched(NamedTuple):
    """What is watched: directories of code, further files, and the patterns of the options."""

    code: list[str]
    files: list[str]
    included: list[Pattern]
    excluded: list[Pattern]

    def concerns(self, path: str) -> bool:
        """Whether a change of this file counts: it belongs to the watched code, or to the files that options name."""
        if path in self.files:
            return True
        if any(each.matches(path) for each in self.excluded):
            return False
        return any(each.matches(path) for each in self.included) or _is_code(path, self.code)

    def directories(self) -> list[str]:
        """All directories, none inside another."""
        return _outermost([*self.code, *map(os.path.dirname, self.files), *(each.root for each in self.included)])


def start(application: str | None, files: Sequence[str] = (), include: Sequence[str] = ()) -> Watcher:
    """Starts the process that watches. `files`: further files, such as the one of `--env-file`. include: the
    values of `--reload-include`. Raises ConfigError."""
    check()
    watched = Watched(
        roots(application),
        [os.path.realpath(path) for path in files],
        [watchable(text) for text in include if not text.startswith("!")],
        [pattern(text[1:]) for text in include if text.startswith("!")],
    )
    reader, writer = os.pipe()
    master = os.getpid()
    pid, mask = forks.fork()
    if pid == 0:
        try:
            os.close(reader)
            _watch(watched, writer, master, mask)
        finally:
            os._exit(0)
    os.close(writer)
    os.set_blocking(reader, False)
    return Watcher(pid, reader)


def _watch(watched: Watched, pipe: int, master: int, mask: Iterable[int]) -> NoReturn:
    """In the child: watches until the master has ended."""
    signal.set_wakeup_fd(-1)
    signals.reset()
    # On Ctrl-C the master ends this process.
    signals.ignore_always(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    set_title("watcher", "reload")

    class Orphaned:
        def is_set(self) -> bool:
            return os.getppid() != master

    def say(kind: str, value: object) -> None:
        os.write(pipe, json.dumps({kind: value}).encode() + b"\n")

    places = watched.directories()
    told = False
    try:
        from watchfiles import watch

        for changes in watch(
            *places,
            watch_filter=lambda change, path: watched.concerns(path),
            debounce=_LONGEST,
            step=_STEP,
            rust_timeout=_LONGEST,
            yield_on_timeout=True,
            stop_event=Orphaned(),
        ):
            # The library also returns an empty set after a pause. The first return means that the watching has begun.
            if not told:
                say("watching", _outermost([*watched.code, *(each.root for each in watched.included)]))
                told = True
            if changes:
                say("changed", sorted({path for _, path in changes}))
    except Exception as error:
        say("failed", str(error) or type(error).__name__)
    os._exit(0)
