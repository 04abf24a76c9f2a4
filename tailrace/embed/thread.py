"""`tailrace.serve_in_thread`: serves an application on threads of its own, while the program goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.cli import load
from tailrace.cli.options import Place
from tailrace.cli.settings import from_keywords, plain
from tailrace.process import binds, descriptors, sockets
from tailrace.worker import core
from tailrace.worker.announce import announce

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
    chosen = plain(from_keywords({"bind": bind, **keywords}, Place.THREAD))
    load.check(app, "app")
    with serving(app, chosen) as url:
        yield url


@contextlib.contextmanager
def serving(app: WSGIApplication, chosen: dict[str, Any]) -> Iterator[str]:
    """`serve_in_thread` for option values that have been read.

    Raises as `serve_in_thread` does.
    """
    wanted = binds.parse_all(chosen["bind"])
    descriptors.open_standard()
    with sockets.bound(wanted, backlog=chosen["backlog"], socket_mode=chosen["socket_mode"]) as listeners:
        server = core.make(app, chosen, listeners)
        url = listeners[0].url
        announce(chosen, app, listeners)
        for listener in listeners:
            listener.hand_over()
        server.start()
        try:
            yield url
        finally:
            server.stop(chosen["graceful_timeout"])
            server.join()
            core.abandoned(server)
        core.check(server)
