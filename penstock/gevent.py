"""Penstock on the hub of a program that runs gevent, and what it can say about greenlets.

    import gevent.monkey
    gevent.monkey.patch_all()
    import penstock.gevent

    server = penstock.gevent.serve(app, bind="127.0.0.1:8000", max_greenlets=2_000)
    server.serve_forever()

Nothing is patched here: that is the program's to decide, before it imports anything else. For a server of its own,
`penstock --gevent` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

try:
    from penstock.greenlets.dump import dump
    from penstock.greenlets.embedded import Server
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("gevent", "greenlet"):
        raise
    raise ImportError(f"penstock.gevent needs gevent: {error}; `pip install 'penstock[gevent]'`") from None

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["Server", "dump", "serve"]


def serve(app: WSGIApplication, *, bind: str | Sequence[str] = "127.0.0.1:0", **keywords: Any) -> Server:
    """A server of `app` on the hub of the calling thread, started: it serves while the hub runs.

    bind: by default a free port of 127.0.0.1, which `url` of the result tells. keywords: the options of
    docs/options.md but those of the groups Application, Processes and Threads, and but `gevent`, `umask` and
    `log_level`. Raises ConfigError, LoadError and BindError.
    """
    server = Server(app, bind=bind, **keywords)
    server.start()
    return server
