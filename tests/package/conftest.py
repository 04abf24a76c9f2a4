"""What the tests of the package share: a directory with modules in it, and the command as a process."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Writes source files into a fresh current directory; what they import is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", os.getcwd())])
    before = dict(sys.modules)

    def write(nested: dict[str, str] | None = None, **flat: str) -> Path:
        for name, source in {**(nested or {}), **flat}.items():
            path = (tmp_path / name).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
        return tmp_path

    yield write
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


_DROP_FROM_BOUNDING_SET = 24  # PR_CAPBSET_DROP, prctl(2)
_MAY_READ_ANYTHING = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, capabilities(7)


def heed_permissions() -> None:
    """Before exec: what runs heeds the permissions of files, also as root."""
    for capability in _MAY_READ_ANYTHING:
        ctypes.CDLL(None).prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)


class Command:
    """`tailrace` as a process. Standard error is read line by line; nothing here waits for time to pass."""

    def __init__(
        self,
        *arguments: str,
        directory: Path,
        pass_fds: tuple[int, ...] = (),
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        def before() -> None:
            prepare()
            heed_permissions()

        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
            preexec_fn=before,
        )
        self.seen: list[str] = []
        # A process that hangs fails its test by ending, instead of hanging the run.
        self.deadline = threading.Timer(60, self.process.kill)
        self.deadline.start()

    def until(self, pattern: str) -> re.Match[str]:
        """Reads the log up to the line that matches; fails when the process ends first."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.seen.append(line)
            if found := re.search(pattern, line):
                return found
        pytest.fail(f"ended with status {self.process.wait()} before {pattern!r}:\n{''.join(self.seen)}")

    def address(self) -> tuple[str, int]:
        """The host and port of the first IPv4 listener."""
        found = self.until(r"listening on http://([\d.]+):(\d+)")
        return found[1], int(found[2])

    def end(self) -> int:
        """Waits for the end; the rest of the log is in `seen`."""
        assert self.process.stderr is not None
        self.seen.extend(self.process.stderr)
        return self.process.wait(30)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts `tailrace` with these arguments in the test's directory, or another one; it ends with the test. prepare:
    called in the new process, in that directory."""
    running: list[Command] = []

    def start(*arguments: str, directory: Path = tmp_path, **others: Any) -> Command:
        running.append(Command(*arguments, directory=directory, **others))
        return running[-1]

    yield start
    for each in running:
        each.deadline.cancel()
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


PONG = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
    return [b"pong"]
"""


@pytest.fixture
def pong(tmp_path: Path) -> Path:
    (tmp_path / "pong.py").write_text(PONG)
    return tmp_path
