"""What Penstock raises before it serves: each message is one line that says what to do.

The command line prints these lines and ends with `exit_status`; a program that embeds Penstock catches `PenstockError`.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of the errors below."""

    exit_status = 1


class ConfigError(PenstockError, ValueError):
    """An option, variable or file that cannot be understood."""

    exit_status = 2


class LoadError(PenstockError):
    """The application could not be loaded.

    `user_traceback` is the formatted traceback when the application's own code raised, without the frames of the
    import system and of Penstock; empty otherwise.
    """

    def __init__(self, message: str, user_traceback: str = "") -> None:
        super().__init__(message)
        self.user_traceback = user_traceback


class HookError(LoadError):
    """A function of the module that `--hooks` names raised; `user_traceback` is its traceback."""


class UpgradeError(PenstockError):
    """No new master could take the place of the running one."""


class WorkerError(LoadError):
    """No worker came as far as serving. `exit_status` and `user_traceback` are those of what stopped the last one."""

    def __init__(self, message: str, user_traceback: str = "", exit_status: int = 1) -> None:
        super().__init__(message, user_traceback)
        self.exit_status = exit_status


class BindError(PenstockError):
    """A listening address could not be opened."""
