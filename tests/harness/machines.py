"""Machines for one test: network namespaces that a bridge joins, each with an address of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable

from .tools import missing, need_tool

# The namespaces of the test alone have these addresses; no packet leaves them.
FRONT = "10.0.0.1"


class Machines:
    """One machine in front, which has the bridge, and others at 10.0.0.11, 10.0.0.12, ...

    As a context manager it makes them, and removes them with all of their processes.
    """

    def __init__(self, count: int) -> None:
        self._ip = need_tool("ip")
        prefix = f"tr{os.getpid()}"
        self.front = f"{prefix}-front"
        self.nodes = [f"{prefix}-{number}" for number in range(1, count + 1)]

    def __enter__(self) -> Machines:  # noqa: PYI034 - typing.Self is of Python 3.11
        try:
            subprocess.run([self._ip, "netns", "add", self.front], check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            missing(f"no network namespace can be made: {error.stderr.strip()}")
        try:
            self._in(self.front, "link", "set", "lo", "up")
            self._in(self.front, "link", "add", "bridge", "type", "bridge")
            self._in(self.front, "address", "add", f"{FRONT}/24", "dev", "bridge")
            self._in(self.front, "link", "set", "bridge", "up")
            for number, node in enumerate(self.nodes, 1):
                self._run("netns", "add", node)
                self._in(
                    self.front, *("link", "add", f"to{number}", "type", "veth", "peer", "name", "wire", "netns", node)
                )
                self._in(self.front, "link", "set", f"to{number}", "master", "bridge", "up")
                self._in(node, "link", "set", "lo", "up")
                self._in(node, "address", "add", f"10.0.0.{10 + number}/24", "dev", "wire")
                self._in(node, "link", "set", "wire", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.front, *self.nodes):
            self.kill(name)
            subprocess.run([self._ip, "netns", "delete", name], check=False, capture_output=True)

    def _run(self, *arguments: str) -> str:
        return subprocess.run([self._ip, *arguments], check=True, capture_output=True, text=True).stdout

    def _in(self, name: str, *arguments: str) -> str:
        return self._run("-n", name, *arguments)

    def command(self, name: str) -> list[str]:
        """What comes before a command that is to run on a machine. The process is then the command's own."""
        return [self._ip, "netns", "exec", name]

    def processes(self, name: str) -> list[int]:
        """The processes of a machine."""
        return [int(pid) for pid in self._run("netns", "pids", name).split()]

    def kill(self, name: str, among: Iterable[int] | None = None) -> None:
        """Ends all processes of a machine at once, as a crash does."""
        with contextlib.suppress(subprocess.CalledProcessError):
            for pid in self.processes(name) if among is None else among:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def cut(self, number: int) -> None:
        """Cuts the link of node `number` (1 is the first): its packets are lost, and nobody is told."""
        self._in(self.front, "link", "set", f"to{number}", "nomaster")

    def join(self, number: int) -> None:
        """Ends what `cut` began."""
        self._in(self.front, "link", "set", f"to{number}", "master", "bridge")
