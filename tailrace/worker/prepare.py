"""What every way to start a server does first: checks the settings and binds.

A master, a single process, an embedded thread and an embedded hub all begin here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tailrace._tailrace import Certificates
from tailrace.cli import folders
from tailrace.cli.envfile import Variables
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import ConfigError
from tailrace.system import binds, descriptors, directory, holding, sockets
from tailrace.system.holding import Sockets
from tailrace.worker import certificates, holder


class Prepared(NamedTuple):
    """settings: with absolute paths. listeners: bound. variables: those of `--env-file`, not applied yet. certificates:
    those of encrypted addresses; None: there is none. holding: for held connections; None: those are the master's."""

    settings: ServerSettings
    listeners: list[sockets.Listener]
    variables: Variables
    certificates: Certificates | None
    holding: Sockets | None


@contextlib.contextmanager
def prepared(
    settings: ServerSettings,
    *,
    named: str | None = None,
    has_status: bool = False,
    kept: Callable[[str], int | None] = lambda address: None,
) -> Iterator[Prepared]:
    """Changes directory and umask, finds folders and files, and binds; at the end, closes the sockets.

    The sockets are bound before the application loads: clients may connect meanwhile, and wait in the backlog.

    has_status: `--status` has an effect. named: the directory that relative paths start from, by the name that it was
    given; None: the current one. kept: as for `sockets.bound`. Raises ConfigError and BindError.
    """
    wanted = binds.parse_all(settings.bind)
    redirected = [each._replace(redirects=True) for each in binds.parse_all(settings.redirect_http, "redirect-http")]
    for each in redirected:
        if each.protocol != "http":
            raise ConfigError(f"--redirect-http {each.address}: redirects HTTP; write the address without a scheme")
    wanted += redirected
    wanted += binds.parse_published(settings.publish_bind)
    descriptors.open_standard()
    if settings.chdir is not None:
        directory.change(settings.chdir)
    settings = folders.located(settings, named)
    if settings.umask is not None:
        os.umask(settings.umask)
    variables = Variables(settings.env_file)
    served = certificates.load(settings, wanted, has_status=has_status)
    with contextlib.ExitStack() as stack:
        # With a master, a process holds connections.
        held = None if has_status else stack.enter_context(holder.in_thread(settings))
        listeners = stack.enter_context(sockets.bound(wanted, kept=kept))
        certificates.encrypt(listeners, served)
        places = [each.url.removesuffix("/publish/") for each in listeners if each.publishes]
        stack.enter_context(holding.advertised(places))
        yield Prepared(settings, listeners, variables, served, held)
