"""What a worker and its master agree on: the worker's report through a pipe, its exit status, and a signal.

A worker reports once: `READY` when it serves, `BROKEN` when it serves an error page (`--reload`), or `FAILED` and a
JSON object when it cannot serve."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Final, NamedTuple

from tailrace.errors import TailraceError
from tailrace.system import forks

READY: Final = b"R"


# It serves a page with the reason why the application does not load (`--reload`).
BROKEN: Final = b"B"


FAILED: Final = b"E"


class Failure(NamedTuple):
    """Why a worker could not load: the line of a TailraceError, its exit status, the traceback of the user's code."""

    message: str
    status: int
    traceback: str = ""

    @classmethod
    def of(cls, error: TailraceError) -> Failure:
        """That of an error."""
        return cls(str(error), error.exit_status, getattr(error, "user_traceback", ""))

    def report(self) -> bytes:
        """What the worker writes to its pipe."""
        return FAILED + json.dumps(self._asdict()).encode()


def send(pipe: int, said: bytes) -> None:
    """Writes a report, and closes the pipe."""
    # BrokenPipeError: the master has ended, and the process notices that by itself.
    with contextlib.suppress(BrokenPipeError):
        while said:
            said = said[os.write(pipe, said) :]
    forks.forget(pipe)
    os.close(pipe)


# On this signal a worker writes the stacks of all threads, by a handler in C that needs no interpreter. It is the last
# real-time signal, which programs hardly use.
STACKS: Final = signal.SIGRTMAX
