"""`tailrace.run`: serves an application on the thread of the program that calls it.

The keyword arguments are options; docs/options.md, which derives from the options table, says which are taken. The
environment and settings files are not read.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tailrace.cli import load, log_settings
from tailrace.cli.option import Place
from tailrace.cli.settings import from_keywords
from tailrace.logs import log
from tailrace.master import main as master
from tailrace.system.exit import leave
from tailrace.worker import single

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from typing_extensions import Unpack

    from tailrace.embed.keywords import RunKeywords

# With one of these, a master and workers are needed. The table's options of a master are others: `hooks` work without a
# master in `--debug`.
_NEED_A_MASTER: Final = (
    "hooks",
    "max_requests",
    "max_lifetime",
    "max_rss",
    "status",
    "haproxy_agent",
    "statsd",
    "otlp_endpoint",
)


def run(
    app: WSGIApplication, *, bind: str | int | Sequence[str] = "127.0.0.1:8000", **keywords: Unpack[RunKeywords]
) -> None:
    """Serves `app` until SIGINT or SIGTERM, then finishes the requests in flight within `graceful_timeout` seconds.

    bind: one address or several, as for `--bind`, or a port. keywords: options; docs/options.md says which are taken by
    `tailrace.run`.

    It serves in this process. With `workers` above 1, with `hooks`, `status`, `haproxy_agent`, `statsd` or
    `otlp_endpoint`, or with a limit after which workers are replaced, it forks worker processes; then call it on the
    main thread, while no other thread runs. `umask`, `user` and `group` change the process for good. Where the program
    has not set up logging, the server's log goes to standard error until `run` returns; with `log` or `log_format`, it
    goes there in any case. On another thread than the main one, where Python allows no signal handlers, it serves until
    the process ends.

    If requests still run at the end, past their time or after a second signal, the log names them. The program's exit
    status is then 0, or 1 when an exception ends it, since such a process cannot end in the usual way before Python
    3.14.

    Raises ConfigError, BindError, WorkerError and ServerError.
    """
    settings = from_keywords({"bind": bind, **keywords}, Place.RUN)
    load.check(app, "app")
    chosen = settings.effective
    with log.restored():
        log_settings.begin_in_program(settings)
        if not chosen.debug and (chosen.worker_count > 1 or any(getattr(chosen, name) for name in _NEED_A_MASTER)):
            master.serve(settings, app)
        elif not single.serve(settings, app):
            atexit.register(leave)
