"""The current directory of a process: `--chdir`, and the name by which the operator knows it."""

from __future__ import annotations

import contextlib
import os
import sys

from tailrace.errors import ConfigError


def change(directory: str) -> None:
    """Makes it the current directory. Raises ConfigError."""
    try:
        os.chdir(directory)
    except OSError as error:
        raise ConfigError(
            f"--chdir {directory!r}: {error.strerror}; name a directory that this user can enter"
        ) from None


def enter(directory: str) -> None:
    """Makes it the current directory, in a worker, and replaces the previous one in `sys.path`.

    The name may denote another directory than at the master's start: a deployment changes a symbolic link.
    """
    try:
        before = os.getcwd()
    except OSError:
        before = ""  # it was removed, and perhaps made again
    if before == os.path.realpath(directory):
        return  # no chdir: the server may run as a user who is not allowed to enter
    change(directory)
    after = os.getcwd()
    if after != before:
        sys.path[:] = [after if entry == before else entry for entry in sys.path]


def named(chdir: str | None) -> str:
    """The directory of the application, by the name that the operator uses for it: symbolic links are kept."""
    if chdir is not None:
        return os.path.abspath(chdir)
    here = os.getcwd()
    named = os.environ.get("PWD", here)
    with contextlib.suppress(OSError):
        if os.path.isabs(named) and os.path.samefile(named, here):
            return named
    return here


def leave_removed(chdir: str | None) -> None:
    """Changes to the directory of `--chdir` if the current one has been removed. Raises ConfigError."""
    try:
        os.getcwd()
    except OSError as error:
        if chdir is None or not os.path.isabs(chdir):
            raise ConfigError(
                f"cannot use the current directory: {error.strerror}; it may have been removed. Change to another one, "
                "or give --chdir an absolute path"
            ) from None
        change(chdir)
