"""`tailrace.serve_in_thread`: serves an application on threads of its own, while the program goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.cli import load
from tailrace.cli.option import Place
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import effective, from_keywords
from tailrace.worker import certificates, core
from tailrace.worker.announce import announce
from tailrace.worker.prepare import prepared

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


@contextlib.contextmanager
def serve_in_thread(
    app: WSGIApplication, *, bind: str | int | Sequence[str] = "127.0.0.1:0", **keywords: Any
) -> Iterator[str]:
    """Serves `app` while the caller's own code runs; the context gives the URL, without a final slash.

        with tailrace.serve_in_thread(app) as url:
            httpx.get(url + "/")

    bind: by default a free port of 127.0.0.1; with several addresses the URL is that of the first. keywords: options;
    docs/options.md says which are taken by `tailrace.serve_in_thread`. Leaving the context stops the server and waits
    for its threads: requests in flight have `graceful_timeout` seconds. Several servers may run at once. Raises
    ConfigError and BindError, and on leaving ServerError when an internal error ended the server."""
    settings = effective(from_keywords({"bind": bind, **keywords}, Place.THREAD))
    load.check(app, "app")
    with serving(app, settings) as url:
        yield url


@contextlib.contextmanager
def serving(app: WSGIApplication, settings: ServerSettings) -> Iterator[str]:
    """`serve_in_thread` for settings that have been read.

    Raises as `serve_in_thread` does.
    """
    with prepared(settings) as ready, certificates.followed(ready.certificates):
        settings, listeners = ready.settings, ready.listeners
        server = core.make(app, settings, listeners)
        url = listeners[0].url
        announce(settings, app, listeners)
        for listener in listeners:
            listener.hand_over()
        server.start()
        try:
            yield url
        finally:
            server.stop(settings.graceful_timeout)
            server.join()
            core.abandoned(server)
        core.check(server)
