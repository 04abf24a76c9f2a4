"""`tailrace.serve_in_thread`: serves an application on threads of its own, while the program goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace import _tailrace
from tailrace.cli import load
from tailrace.cli.option import Place
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import from_keywords
from tailrace.embed.server import Server
from tailrace.system.sockets import Listener
from tailrace.worker import certificates, core
from tailrace.worker.announce import announce
from tailrace.worker.prepare import prepared

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from typing_extensions import Unpack

    from tailrace.embed.keywords import ThreadKeywords


class _ThreadServer(Server):
    def __init__(self, server: _tailrace.Server, listeners: Sequence[Listener], graceful_timeout: float) -> None:
        super().__init__(listeners)
        self._server = server
        self._graceful_timeout = graceful_timeout

    def stats(self) -> dict[str, int]:
        return self._server.stats()

    def stop(self, timeout: float | None = None) -> None:
        self._server.stop(self._graceful_timeout if timeout is None else timeout)
        self._server.join()


@contextlib.contextmanager
def serve_in_thread(
    app: WSGIApplication, *, bind: str | int | Sequence[str] = "127.0.0.1:0", **keywords: Unpack[ThreadKeywords]
) -> Iterator[Server]:
    """Serves `app` while the caller's own code runs; the context provides a `tailrace.Server`.

        with tailrace.serve_in_thread(app) as server:
            httpx.get(server.url + "/")

    bind: by default a free port of 127.0.0.1; with several addresses the URL is that of the first. keywords: options;
    docs/options.md says which are taken by `tailrace.serve_in_thread`. Leaving the context stops the server and waits
    for its threads: requests in flight have `graceful_timeout` seconds. Several servers may run at once. Raises
    ConfigError and BindError, and on leaving ServerError when an internal error ended the server."""
    settings = from_keywords({"bind": bind, **keywords}, Place.THREAD).effective
    load.check(app, "app")
    with serving(app, settings) as server:
        yield server


@contextlib.contextmanager
def serving(app: WSGIApplication, settings: ServerSettings) -> Iterator[Server]:
    """`serve_in_thread` for settings that have been read.

    Raises as `serve_in_thread` does.
    """
    with prepared(settings) as ready, certificates.followed(ready.certificates):
        settings, listeners = ready.settings, ready.listeners
        server = core.make(app, settings, listeners, holds=ready.holding)
        running = _ThreadServer(server, listeners, settings.graceful_timeout)
        announce(settings, app, listeners)
        for listener in listeners:
            listener.hand_over()
        server.start()
        try:
            yield running
        finally:
            running.stop()
            core.abandoned(server)
        core.check(server)
