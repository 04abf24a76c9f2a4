"""The holder: the process that holds connections without threads, or in a server without a master a thread. No Python
runs in the process but its start and its log.

Thread: the main one waits for the end; the core has one further.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Collection, Iterator
from typing import Final, NoReturn

from tailrace._tailrace import Holder
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import ConfigError, denial
from tailrace.logs import log
from tailrace.system import holding
from tailrace.worker import companion, open_files

# How long the end of a server waits until clients have the end of their responses, where a thread holds them (seconds).
_LAST_BYTES: Final = 1.0
# How long clients have for the end of their responses (seconds).
GRACE: Final = 5.0


def work(
    sockets: holding.Sockets,
    settings: ServerSettings,
    line: int,
    master: int,
    mask: Collection[int],
    *,
    takes_over: bool,
) -> NoReturn:
    """Runs the holder.

    line: the reading end of the pipe, whose other end only the master has.
    mask: the signal mask to restore. takes_over: the holder of the former master has connections. The exit status is 0
    when it was told to end, or the next holder has taken over, else 1.
    """
    try:
        companion.begin("holder", settings.app or "", master, mask)
        open_files.raise_limit()
        made = _make(sockets, settings, has_bus=settings.publish_bus is not None)
        sockets.close()
        if takes_over:
            _take_over(made, sockets)
        made.start()
        poll = select.poll()
        # It is at its end when the master has closed its own, or has ended.
        poll.register(line, 0)
        while not poll.poll(1000):
            if made.has_ended():
                os._exit(0)
        made.stop(GRACE)
        os._exit(0)
    except BaseException:
        log.logger.exception("the process that holds connections ended with an exception; please report it")
    finally:
        os._exit(1)


def _take_over(made: Holder, sockets: holding.Sockets) -> None:
    try:
        count = made.take_over(sockets.holder_address)
    except OSError as error:
        log.logger.error("cannot take over held connections, so they are closed: %s", denial(error))
    else:
        log.logger.info("%s taken over", log.counted(count, "held connection"))


def _make(sockets: holding.Sockets, settings: ServerSettings, *, has_bus: bool) -> Holder:
    return Holder(
        sockets.holder.fileno(),
        sockets.application_address,
        write_timeout=settings.write_timeout,
        client_connections=settings.max_connections_per_client,
        has_bus=has_bus,
    )


def note_missing(settings: ServerSettings, error: OSError) -> None:
    """No socket can be opened for held connections, as in a service that may use only AF_INET. A server that holds none
    starts without it. Raises ConfigError if an option needs it."""
    needing = {
        "publish-bind": settings.publish_bind,
        "publish-bus": settings.publish_bus,
        "websocket-events": settings.websocket_events,
    }
    for option, value in needing.items():
        if value:
            raise ConfigError(f"--{option}: cannot open a UNIX socket for held connections: {denial(error)}") from None
    log.logger.warning("cannot open a UNIX socket, so connections cannot be held: %s", denial(error))


@contextlib.contextmanager
def in_thread(settings: ServerSettings) -> Iterator[holding.Sockets | None]:
    """A thread of this process holds the connections of a server without a master, inside the context. None: none can
    be held. Raises ConfigError, OSError."""
    try:
        sockets = holding.listen()
    except OSError as error:
        note_missing(settings, error)
        yield None
        return
    try:
        made = _make(sockets, settings, has_bus=False)
        sockets.holder.close()
        made.start()
        try:
            yield sockets
        finally:
            made.stop(_LAST_BYTES)
    finally:
        holding.forget(sockets)
        sockets.close()
