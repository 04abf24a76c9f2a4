"""What every way to start a server does first: checks the settings and binds.

A master, a single process, an embedded thread and an embedded hub all begin here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailrace.cli import folders
from tailrace.cli.envfile import Variables
from tailrace.cli.server_settings import ServerSettings
from tailrace.system import binds, descriptors, directory, sockets


@dataclass(frozen=True)
class Prepared:
    """settings: with absolute paths. listeners: bound. variables: those of `--env-file`, not applied yet."""

    settings: ServerSettings
    listeners: list[sockets.Listener]
    variables: Variables


@contextlib.contextmanager
def prepared(
    settings: ServerSettings,
    *,
    named: str | None = None,
    kept: Callable[[str], int | None] = lambda address: None,
) -> Iterator[Prepared]:
    """Changes directory and umask, finds folders and files, and binds; at the end, closes the sockets.

    The sockets are bound before the application loads: clients may connect meanwhile, and wait in the backlog.

    named: the directory that relative paths start from, by the name that it was given; None: the current one. kept: as
    for `sockets.bound`. Raises ConfigError and BindError.
    """
    wanted = binds.parse_all(settings.bind)
    descriptors.open_standard()
    if settings.chdir is not None:
        directory.change(settings.chdir)
    settings = folders.located(settings, named)
    if settings.umask is not None:
        os.umask(settings.umask)
    variables = Variables(settings.env_file)
    with sockets.bound(wanted, backlog=settings.backlog, socket_mode=settings.socket_mode, kept=kept) as listeners:
        yield Prepared(settings, listeners, variables)
