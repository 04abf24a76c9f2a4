"""The limit of open files: raised to what the connections and requests of a worker need.

The soft limit is low by default only because of programs that use select(2). Programs that need more than a thousand
descriptors, and do not use select(2), are to raise it to the hard limit themselves. See getrlimit(2).

Thread: the one that starts a server.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from typing import Final

from tailrace.cli import options
from tailrace.cli.server_settings import ServerSettings
from tailrace.logs import log

# Descriptors of the interpreter, the logs and the core. Each request is counted for one more, such as to a database.
_OWN: Final = 256


def allow(settings: ServerSettings) -> int:
    """Raises the limit of open files as far as needed and allowed. How many connections the process may have then.

    Logs a warning when these are fewer than the settings ask for.
    """
    connections, requests = settings.max_connections, settings.concurrency
    lower, upper = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = _OWN + (settings.static_descriptors if settings.static or settings.overlay else 0)
    wanted = connections + requests + own
    if lower != resource.RLIM_INFINITY and lower < wanted:
        lower = max(lower, wanted if upper == resource.RLIM_INFINITY else min(wanted, upper))
        # May be forbidden in a container.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (lower, upper))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return connections
    # Clients must not take the descriptors that the application needs.
    possible = max(1, min(connections, limit - min(requests + own, limit // 4)))
    if settings.gevent and limit < requests + own:
        log.logger.warning(
            "the limit of %d open files is too low for --max-greenlets %d: a worker keeps at most %d connections, and "
            "further clients wait; raise the limit (`ulimit -Hn`, LimitNOFILE= of systemd), or lower --max-greenlets",
            limit,
            requests,
            possible,
        )
    elif possible < connections:
        # No warning for the default value, which nobody has chosen.
        is_asked_for = connections != options.BY_NAME["max_connections"].default
        log.logger.log(
            logging.WARNING if is_asked_for else logging.DEBUG,
            "the limit of %d open files is too low for --max-connections %d: a worker keeps at most %d connections, "
            "and closes idle ones for new clients; raise the limit (`ulimit -Hn`, LimitNOFILE= of systemd), or lower "
            "--max-connections",
            limit,
            connections,
            possible,
        )
    return possible
