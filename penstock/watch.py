"""`--reload`, for development: a process that watches the files, and what the browser sees while they do not load.

The master must stay single-threaded, because it forks; the library that watches has a thread. So a child of the master
watches, and writes a line of JSON into a pipe when files have changed. It ends with the master.

Watched are the current directory, the application's own, and every directory of the module path that is no
installation (a package installed in editable mode is part of what one develops): files that Python imports, but none
below a hidden directory, a virtual environment's packages or a cache.

Thread: the main one of the master, of the child, of the worker.
"""

from __future__ import annotations

import contextlib
import html
import importlib.util
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from penstock import identity
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# Milliseconds. A change is told when nothing more has changed for one or two steps: an editor saves several files.
_STEP: Final = 20
_LONGEST: Final = 100
_SUFFIXES: Final = (".py", ".so")
_IGNORED: Final = frozenset({"__pycache__", "site-packages", "node_modules"})


def check() -> None:
    """Raises ConfigError when files cannot be watched."""
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError(
            "--reload needs the package watchfiles, which is not installed; `pip install 'penstock[reload]'`"
        )


def roots(application: str | None) -> list[str]:
    """The directories to watch, none inside another; `application` is what `--app` names."""
    found = [os.getcwd()]
    path = (application or "").partition(":")[0]
    if "/" in path or path.endswith((".py", ".wsgi")):
        found.append(os.path.dirname(os.path.abspath(path)))
    installed = {os.path.realpath(place) for place in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)}
    ours = str(Path(__file__).resolve().parent.parent)
    for entry in sys.path:
        place = os.path.realpath(entry)
        if entry and os.path.isdir(place) and place != ours and not any(_within(place, each) for each in installed):
            found.append(place)
    outer: list[str] = []
    for place in sorted({os.path.realpath(each) for each in found}):
        if not any(_within(place, each) for each in outer):
            outer.append(place)
    return outer


def concerns(path: str, watched: Iterable[str], files: Iterable[str]) -> bool:
    """Whether a change of this file is one of the code, or of one of `files`."""
    if path in files:
        return True
    for root in watched:
        if _within(path, root):
            *directories, name = Path(path).relative_to(root).parts or ("",)
            hidden = any(part.startswith(".") or part in _IGNORED for part in directories)
            return name.endswith(_SUFFIXES) and not name.startswith(".") and not hidden
    return False


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def forget_bytecode(paths: Iterable[str]) -> None:
    """Removes what Python has cached of these files: it tells versions apart by the second and the size, and two saves
    may have both in common."""
    for path in paths:
        if path.endswith(".py"):
            with contextlib.suppress(OSError, NotImplementedError):
                os.unlink(importlib.util.cache_from_source(path))


@dataclass
class Watcher:
    """The watching process as the master sees it. `pipe` can be waited on, and never blocks. `handle` is the process
    itself: as process 1 the master reaps whatever ends, and the number may then be another process's."""

    pid: int
    pipe: int
    handle: int
    _said: bytes = field(default=b"", repr=False)

    def read(self) -> list[Watching | Changed | Failed]:
        """What it has said since."""
        while self.pipe >= 0:
            try:
                said = os.read(self.pipe, 65536)
            except BlockingIOError:
                break
            if not said:
                self._close_pipe()
                return [Failed("its process has ended")]
            self._said += said
        *lines, self._said = self._said.split(b"\n")
        return [_EVENTS[kind](value) for line in lines for kind, value in json.loads(line).items()]

    def stop(self) -> None:
        """Ends it and waits for that."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if self.handle >= 0:
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
                os.waitid(os.P_PIDFD, self.handle, os.WEXITED)
        self.close()

    def close(self) -> None:
        """Closes what we have of it; also in workers, which inherit it."""
        self._close_pipe()
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def _close_pipe(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1


@dataclass(frozen=True)
class Watching:
    """From now on changes are seen, in these directories."""

    directories: list[str]


@dataclass(frozen=True)
class Changed:
    """These files have changed."""

    paths: list[str]


@dataclass(frozen=True)
class Failed:
    """Files cannot be watched; why, in words."""

    reason: str


_EVENTS: Final[dict[str, Any]] = {"watching": Watching, "changed": Changed, "failed": Failed}


def start(application: str | None, files: Sequence[str] = ()) -> Watcher:
    """Starts the process that watches. `files`: further files, such as the one of `--env-file`. Raises ConfigError."""
    check()
    watched = roots(application)
    others = [os.path.realpath(path) for path in files]
    reader, writer = os.pipe()
    master = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                _watch(watched, others, writer, master, mask)
            finally:
                os._exit(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(writer)
    os.set_blocking(reader, False)
    return Watcher(pid, reader, os.pidfd_open(pid))


def _watch(watched: list[str], files: list[str], pipe: int, master: int, mask: Iterable[int]) -> NoReturn:
    """In the child: watches until the master is gone."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    # Ctrl-C is for the master, which ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    identity.set_title("watcher", "reload")

    class Orphaned:
        def is_set(self) -> bool:
            return os.getppid() != master

    def say(kind: str, value: object) -> None:
        os.write(pipe, json.dumps({kind: value}).encode() + b"\n")

    places = [*watched, *{os.path.dirname(path) for path in files if not concerns(path, watched, ())}]
    told = False
    try:
        from watchfiles import watch

        for changes in watch(
            *places,
            watch_filter=lambda change, path: concerns(path, watched, files),
            debounce=_LONGEST,
            step=_STEP,
            rust_timeout=_LONGEST,
            yield_on_timeout=True,
            stop_event=Orphaned(),
        ):
            # An empty set means that a while has passed: the first one, that the watching has begun.
            if not told:
                say("watching", watched)
                told = True
            if changes:
                say("changed", sorted({path for _, path in changes}))
    except Exception as error:
        say("failed", str(error) or type(error).__name__)
    os._exit(0)


_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>The application does not load</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}}
pre{{background:#f4f4f4;color:#222;padding:1em;overflow-x:auto}}</style></head>
<body><h1>The application does not load</h1><p>{message}</p><pre>{trace}</pre>
<p>Save the file to try again, then reload this page.</p></body></html>
"""


def broken(error: PenstockError) -> WSGIApplication:
    """An application that answers every request with why the real one could not be loaded."""
    trace = getattr(error, "user_traceback", "")
    page = _PAGE.format(message=html.escape(str(error)), trace=html.escape(trace)).encode()
    text = f"The application does not load: {error}\n\n{trace}".encode()

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        kind, body = ("html", page) if "text/html" in environ.get("HTTP_ACCEPT", "") else ("plain", text)
        start_response(
            "500 Internal Server Error",
            [
                ("Content-Type", f"text/{kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
            ],
        )
        return [body]

    return application
