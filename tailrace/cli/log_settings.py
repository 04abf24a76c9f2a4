"""Where the options say that the server's own log goes.

Thread: the main one, before anything is logged.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from tailrace.cli.options import BY_NAME
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import DEFAULT, Settings
from tailrace.errors import ConfigError
from tailrace.logs import log, log_config

# What `--log-config` says instead.
SAID_BY_THE_FILE = ("log", "log_format", "log_level")


def begin(settings: Settings) -> None:
    """Sends the log of the command where the settings say. Raises ConfigError."""
    if not _is_said_by_the_file(settings):
        chosen = _located(settings)
        with _umask(chosen.umask):
            log.send_to(chosen.log, chosen.log_format, chosen.log_level)


def begin_in_program(settings: Settings) -> None:
    """Sends the log of a program that calls `tailrace.run` where the arguments say; without such, to standard error if
    the program has set up no logging. Raises ConfigError."""
    if not _is_said_by_the_file(settings):
        given = [name for name in SAID_BY_THE_FILE if settings[name].source != DEFAULT]
        chosen = _located(settings)
        with _umask(chosen.umask):
            log.show(chosen.log, chosen.log_format, chosen.log_level, given)


def check(settings: Settings) -> None:
    """Raises ConfigError for an option that the file of `--log-config` replaces."""
    file = settings["log_config"].value
    for name in SAID_BY_THE_FILE:
        if file is not None and settings[name].source != DEFAULT:
            raise ConfigError(
                f"{BY_NAME[name].flag} ({settings[name].source}) cannot be combined with --log-config; remove it, and "
                f"set the level and handlers of the logger 'tailrace' in {file}"
            )


def _located(settings: Settings) -> ServerSettings:
    """The option values, with the destination of the log by a name from the root."""
    chosen = settings.effective
    return replace(chosen, log=log.located(chosen.log or log.STDERR, chosen.chdir))


def _is_said_by_the_file(settings: Settings) -> bool:
    """Applies the file of `--log-config`; False: there is none. Raises ConfigError, also for an option that the file
    replaces."""
    check(settings)
    chosen = settings.effective
    file = chosen.log_config
    if file is not None:
        with _umask(chosen.umask):
            log_config.apply(os.path.abspath(file), chosen.log_level, os.path.abspath(chosen.chdir or ""))
    return file is not None


@contextlib.contextmanager
def _umask(mask: int | None) -> Iterator[None]:
    """Log files are made with the permissions that `--umask` leaves, which the server sets for itself later."""
    if mask is None:
        yield
        return
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
