"""Penstock inside another Python program: `run` and `serve_in_thread`.

Options are the keyword arguments, as in docs/options.md; the environment and settings files are not read.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock import load, master, options, sockets, worker
from penstock.errors import ConfigError
from penstock.settings import from_keywords, plain

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

# `app` is an argument of its own; the others belong to loading it, or to the process, which is the program's.
_LOADING = ("app", "factory", "chdir", "preload", "env_file", "reload", "hooks", "user", "group", "pidfile")
_KEYWORDS = tuple(
    name for name, option in options.BY_NAME.items() if name not in _LOADING and option.group != options.GREENLETS
)
# What only a master does.
_RECYCLING = ("max_requests", "max_lifetime", "max_rss")
# `debug` needs the main thread, the mask is the whole process's, and a thread has no workers.
_THREAD_KEYWORDS = tuple(
    name for name in _KEYWORDS if name not in ("debug", "umask") and options.BY_NAME[name].group != options.PROCESSES
)


def run(app: WSGIApplication, *, bind: str | Sequence[str] = "127.0.0.1:8000", **keywords: Any) -> None:
    """Serves `app` until SIGINT or SIGTERM, then finishes the requests in flight within `graceful_timeout` seconds.

    bind: one address or several, as for `--bind`. keywords: any option but those that say how to load an application
    (`app`, `factory`, `chdir`, `preload`, `env_file`, `reload`) or what the process is (`hooks`, `user`, `group`,
    `pidfile`).
    It serves in this process; with `workers` above 1, or a limit after which workers are replaced, in processes that
    are forked from it, which then must be done on the main thread and while no other thread runs.
    On another thread than the main one, where Python takes no signal handlers, it serves until the process ends.
    If requests are left running, past their time or after a second signal, the program's exit status will be 1.
    Raises ConfigError, BindError and WorkerError; KeyboardInterrupt with `debug=True`.
    """
    _refuse_greenlets(keywords)
    settings = from_keywords({"bind": bind, **keywords}, allowed=_KEYWORDS)
    load.check(app, "app")
    chosen = plain(settings)
    if not chosen["debug"] and (options.worker_count(chosen) > 1 or any(chosen[name] for name in _RECYCLING)):
        master.serve(settings, app)
    elif not worker.serve(settings, app):
        atexit.register(worker.leave, 1)


@contextlib.contextmanager
def serve_in_thread(
    app: WSGIApplication, *, bind: str | Sequence[str] = "127.0.0.1:0", **keywords: Any
) -> Iterator[str]:
    """Serves `app` beside the caller's own code; the context is the URL, without a final slash.

        with penstock.serve_in_thread(app) as url:
            httpx.get(url + "/")

    bind: by default a free port of 127.0.0.1; with several addresses the URL is that of the first. keywords: any
    option but `app`, `factory`, `chdir`, `debug` and `umask`. Leaving the context stops the server and waits for its
    threads: requests in flight have `graceful_timeout` seconds. Several servers may run at once. Raises ConfigError
    and BindError.
    """
    _refuse_greenlets(keywords)
    if keywords.get("debug"):
        raise ConfigError("debug = True needs the main thread, which the caller uses; call penstock.run instead")
    chosen = plain(from_keywords({"bind": bind, **keywords}, allowed=_THREAD_KEYWORDS))
    load.check(app, "app")
    addresses = [sockets.parse(text) for text in chosen["bind"]]
    with sockets.bound(addresses, backlog=chosen["backlog"], socket_mode=chosen["socket_mode"]) as listeners:
        server = worker.core(app, chosen, listeners)
        url = listeners[0].url
        for listener in listeners:
            listener.hand_over()
        server.start()
        try:
            yield url
        finally:
            server.stop(chosen["graceful_timeout"])
            server.join()


def _refuse_greenlets(keywords: Mapping[str, object]) -> None:
    """Raises ConfigError for options that only a hub of gevent has a use for."""
    for name in keywords:
        if name in options.BY_NAME and options.BY_NAME[name].group == options.GREENLETS:
            raise ConfigError(
                f"{name}: the program runs already, too late to patch it; on a hub of gevent's, call "
                "penstock.gevent.serve, or let `penstock --gevent` load the application"
            )
