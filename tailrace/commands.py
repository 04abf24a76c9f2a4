"""For commands of other packages: the application that settings name, loaded as a server loads it and served in this
process, and what the core says of static files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tailrace._tailrace import static_codings, static_headers, static_refusal
from tailrace.cli import folders, load
from tailrace.cli.envfile import Variables
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import Settings
from tailrace.embed.thread import serving
from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.system import directory
from tailrace.worker import core

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["Loaded", "loaded", "static_codings", "static_headers", "static_refusal"]

# Requests in flight when the server stops have this long (seconds).
_GRACE: Final = 1.0


@dataclass(frozen=True)
class Loaded:
    """An application, and the settings that name it."""

    application: WSGIApplication
    _settings: ServerSettings

    @contextlib.contextmanager
    def serving(self, application: WSGIApplication) -> Iterator[str]:
        """Serves an application with these settings on threads of this process; the context gives the URL, of a free
        port of 127.0.0.1.

        Without what concerns a service (logs, --status) or is done already. Raises as `serve_in_thread` does.
        """
        chosen = replace(
            self._settings,
            chdir=None,
            umask=None,
            env_file=None,
            gevent=False,
            debug=False,
            access_log=None,
            status=None,
            haproxy_agent=None,
            bind=("127.0.0.1:0",),
            graceful_timeout=_GRACE,
        )
        with serving(application, chosen) as server:
            yield server.url


def loaded(settings: Settings) -> Loaded:
    """Loads the application that settings name as a server would: in its directory, with its variables. Raises
    ConfigError, LoadError."""
    chosen = settings.effective
    directory.leave_removed(chosen.chdir)
    if chosen.chdir is not None:
        directory.change(chosen.chdir)
    # The application may change the current directory.
    chosen = folders.located(chosen)
    Variables(chosen.env_file).apply()
    application = load.load(chosen.app or "", factory=chosen.factory)
    log.revive()
    if core.threads_are_greenlets():
        raise ConfigError(
            f"{chosen.app}: importing it patches the standard library for gevent, but this command serves with "
            "threads; name a module that does not patch it"
        )
    return Loaded(application, chosen)
