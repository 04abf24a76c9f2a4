"""The exceptions of Tailrace, most of them raised before it serves. Each message is one line that says what to do.

The command prints the line and ends with `exit_status`; a program that embeds Tailrace catches `TailraceError`.
docs/reference/signals.md lists the statuses.
"""

from __future__ import annotations

import errno
from typing import Final

# The exit status if the application or the workers cannot start. gunicorn uses the same for a worker that cannot boot.
CANNOT_START: Final = 3


class TailraceError(Exception):
    """Base of the errors below."""

    exit_status = 1


class ConfigError(TailraceError, ValueError):
    """An option, variable or file that cannot be understood."""

    exit_status = 2


class LoadError(TailraceError):
    """The application could not be loaded.

    `user_traceback` is the formatted traceback when the application's own code raised, without the frames of the
    import system and of Tailrace; empty otherwise.
    """

    exit_status = CANNOT_START

    def __init__(self, message: str, user_traceback: str = "") -> None:
        super().__init__(message)
        self.user_traceback = user_traceback


class HookError(LoadError):
    """A function of the module that `--hooks` names raised; `user_traceback` is its traceback."""


class UpgradeError(TailraceError):
    """No new master could take the place of the running one."""


class WorkerError(LoadError):
    """No worker could serve. `exit_status` and `user_traceback` are those of the error that ended the last one."""

    def __init__(self, message: str, user_traceback: str = "", exit_status: int = CANNOT_START) -> None:
        super().__init__(message, user_traceback)
        self.exit_status = exit_status


_REMEDIES: Final = {
    errno.EMFILE: "raise the limit of open files (`ulimit -Hn`, LimitNOFILE= of systemd)",
    errno.ENFILE: "raise the limit of open files of the system (`sysctl fs.file-max`)",
    errno.ENOMEM: "raise the limit of memory (`ulimit -v`, MemoryMax= of systemd)",
    errno.EAGAIN: "raise the limit of processes and threads (`ulimit -u`, TasksMax= of systemd)",
}


def denial(error: OSError) -> str:
    """What the operating system has refused, and the remedy."""
    said = error.strerror or str(error)
    return f"{said}; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else said


class StartError(TailraceError):
    """The operating system refused what a server needs to start, such as a descriptor or memory."""


class ServerError(TailraceError):
    """An internal error of Tailrace ended the server while it served."""


class PublishError(TailraceError):
    """An event could not be published: no server could be reached, or the server rejected it."""


class BindError(TailraceError):
    """A listening address could not be opened."""
