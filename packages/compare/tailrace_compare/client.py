"""A client in a separate process, which reads commands and writes results as lines."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator


class Client:
    """The process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self, seconds: float) -> str:
        """Its next line. Raises OSError if there is none in time, or if the client has exited."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise OSError("the client does not respond")
        if not (line := self.process.stdout.readline()):
            raise OSError("the client has exited")
        return line

    def ask(self, seconds: float) -> str:
        """Sends an empty line, and returns the response. Raises OSError."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line(seconds)


@contextlib.contextmanager
def started(module: str, arguments: list[str], ready_within: float) -> Iterator[Client]:
    """A client that has reported that it is ready. Raises OSError if it does not."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=0) as process:
        try:
            client = Client(process)
            client.line(ready_within)
            yield client
        finally:
            process.kill()
