"""The limit of open files: raised to what the connections and requests of a worker need.

The soft limit is low by default only because of programs that use select(2). Programs that need more than a thousand
descriptors, and do not use select(2), are to raise it to the hard limit themselves. See getrlimit(2).

Thread: the one that starts a server.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

from tailrace._tailrace import MAX_OPEN_FILES
from tailrace.cli.server_settings import MAX_CONNECTIONS, ServerSettings
from tailrace.logs import log

# Descriptors of the interpreter, the logs and the core. Each request is counted for one more, such as to a database.
_OWN: Final = 256
# As many as Linux allows without further settings (fs.nr_open).
_MANY: Final = 1 << 20


def raise_limit() -> None:
    """Raises the limit as far as allowed, for a process that runs no application."""
    upper = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_MANY if upper == resource.RLIM_INFINITY else upper, upper))


def allow(settings: ServerSettings) -> int:
    """Raises the limit of open files as far as needed and allowed. How many connections the process may have then.

    Logs a warning when the limit is too low for the requests that --max-greenlets allows.
    """
    requests = settings.concurrency
    lower, upper = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = _OWN + (MAX_OPEN_FILES if settings.static or settings.overlay else 0)
    wanted = MAX_CONNECTIONS + requests + own
    if lower != resource.RLIM_INFINITY and lower < wanted:
        lower = max(lower, wanted if upper == resource.RLIM_INFINITY else min(wanted, upper))
        # May be forbidden in a container.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (lower, upper))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return MAX_CONNECTIONS
    # Clients must not take the descriptors that the application needs.
    possible = max(1, min(MAX_CONNECTIONS, limit - min(requests + own, limit // 4)))
    if settings.gevent and limit < requests + own:
        log.logger.warning(
            "the limit of %d open files is too low for --max-greenlets %d: a worker keeps at most %d connections, and "
            "further clients wait; raise the limit (`ulimit -Hn`, LimitNOFILE= of systemd), or lower --max-greenlets",
            limit,
            requests,
            possible,
        )
    return possible
