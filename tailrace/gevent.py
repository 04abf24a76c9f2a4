"""Tailrace on the hub of a program that runs gevent, and a dump of all greenlets.

    import gevent.monkey
    gevent.monkey.patch_all()
    import tailrace.gevent

    server = tailrace.gevent.serve(app, bind="127.0.0.1:8000", max_greenlets=2_000)
    server.serve_forever()

Nothing is patched here: the program calls `patch_all`, before it imports anything else. A server that is no part of a
program is started by `tailrace --gevent`, which patches by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

try:
    from tailrace.embed.hub import Server
    from tailrace.greenlets.dump import dump
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("gevent", "greenlet"):
        raise
    raise ImportError(f"tailrace.gevent needs gevent: {error}; `pip install 'tailrace[gevent]'`") from None

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from typing_extensions import Unpack

    from tailrace.embed.keywords import HubKeywords

__all__ = ["Server", "dump", "serve"]


def serve(
    app: WSGIApplication, *, bind: str | int | Sequence[str] = "127.0.0.1:0", **keywords: Unpack[HubKeywords]
) -> Server:
    """Starts a server of `app` on the hub of the calling thread. It serves while the hub runs.

    bind: by default a free port of 127.0.0.1, which `url` of the result tells. keywords:
    options; docs/options.md says which are taken by this function. Raises ConfigError, LoadError and BindError.
    """
    server = Server(app, bind=bind, **keywords)
    server.start()
    return server
