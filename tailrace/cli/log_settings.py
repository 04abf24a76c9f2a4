"""Where the options say that the server's own log goes.

Thread: the main one, before anything is logged.
"""

from __future__ import annotations

import os

from tailrace.cli.options import BY_NAME
from tailrace.cli.settings import DEFAULT, Settings, plain
from tailrace.process import log, log_config
from tailrace.process.errors import ConfigError

# What `--log-config` says instead.
_SAID_BY_THE_FILE = ("log", "log_format", "log_level")


def begin(settings: Settings) -> None:
    """Sends the log of the command where the settings say. Raises ConfigError."""
    chosen = plain(settings)
    if chosen["log_config"] is not None:
        check(settings)
        apply(settings)
        return
    destination = log.located(chosen["log"] or log.STDERR, chosen["chdir"])
    log.send_to(destination, chosen["log_format"], chosen["log_level"])


def begin_in_program(settings: Settings) -> None:
    """Sends the log of a program that calls `tailrace.run` where the arguments say; without such, to standard error if
    the program has set up no logging. Raises ConfigError."""
    chosen = plain(settings)
    if chosen["log_config"] is not None:
        check(settings)
        apply(settings)
        return
    given = [name for name in _SAID_BY_THE_FILE if settings[name].source != DEFAULT]
    log.show(chosen | {"log": log.located(chosen["log"] or log.STDERR, chosen["chdir"])}, given)


def check(settings: Settings) -> None:
    """Raises ConfigError for an option that the file of `--log-config` replaces."""
    file = settings["log_config"].value
    for name in _SAID_BY_THE_FILE:
        if file is not None and settings[name].source != DEFAULT:
            raise ConfigError(
                f"{BY_NAME[name].flag} ({settings[name].source}) cannot be combined with --log-config: leave it out, "
                f"and give the logger 'tailrace' in {file} its level and handlers"
            )


def apply(settings: Settings) -> None:
    """Applies the file of `--log-config`. Raises ConfigError."""
    chosen = plain(settings)
    directory = os.path.abspath(chosen["chdir"] or "")
    log_config.apply(os.path.abspath(chosen["log_config"]), chosen["log_level"], directory)
