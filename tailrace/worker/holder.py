"""The holder: the process that holds connections without threads, or in a server without a master a thread. No Python
runs in the process but its start and its log.

Thread: the main one waits for the end; the core has one further.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Collection, Iterator
from typing import Final, NoReturn

from tailrace._tailrace import Holder
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import denial
from tailrace.logs import log
from tailrace.system import holding
from tailrace.worker import companion, open_files

# How long the end of a server waits until clients have the end of their responses, where a thread holds them (seconds).
_LAST_BYTES: Final = 1.0

_lock: Final = threading.Lock()
# Servers of this process that use the thread.
_users = 0
_thread: Holder | None = None
# How long clients have for the end of their responses (seconds).
GRACE: Final = 5.0


def work(
    listener: socket.socket,
    settings: ServerSettings,
    line: int,
    master: int,
    mask: Collection[int],
    *,
    takes_over: bool,
) -> NoReturn:
    """Runs the holder.

    listener: where it is passed connections. line: the reading end of the pipe, whose other end only the master has.
    mask: the signal mask to restore. takes_over: the holder of the former master has connections. The exit status is 0
    when it was told to end, or the next holder has taken over, else 1.
    """
    try:
        companion.begin("holder", settings.app or "", master, mask)
        open_files.raise_limit()
        made = _make(listener, settings)
        listener.close()
        if takes_over:
            _take_over(made)
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


def _take_over(made: Holder) -> None:
    try:
        count = made.take_over(holding.address() or b"")
    except OSError as error:
        log.logger.error("cannot take over held connections, which will be closed: %s", denial(error))
    else:
        log.logger.info("%s taken over", log.counted(count, "held connection"))


def _make(listener: socket.socket, settings: ServerSettings) -> Holder:
    return Holder(
        listener.fileno(),
        write_timeout=settings.write_timeout,
        client_connections=settings.max_connections_per_client,
    )


@contextlib.contextmanager
def in_thread(settings: ServerSettings) -> Iterator[None]:
    """A thread of this process holds connections inside the context, for a server without a master. Servers of one
    process share it. Raises OSError."""
    global _users, _thread
    with _lock:
        if holding.address() is None:
            with holding.listen() as listener:
                _thread = _make(listener, settings)
            _thread.start()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _thread is not None:
                _thread.stop(_LAST_BYTES)
                _thread = None
                holding.forget()
