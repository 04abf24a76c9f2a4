"""The holder, the master's side: the socket where connections are passed to it, and the process, which is forked when
the first one comes, watched and replaced.

The master keeps the socket, so that nothing that is passed is lost while there is no process, and that a new master
(SIGUSR2) gets it.

Thread: the master's only one.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Collection
from typing import Final

from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import denial
from tailrace.logs import log
from tailrace.master import companion
from tailrace.master.companion import Backoff, Process
from tailrace.system import holding
from tailrace.worker import holder

# By which a new master asks for the sockets.
NAMES: Final = ("holder", "application")
# How long a master that has handed over waits for the next one to take over its connections (seconds).
_HAND_OVER: Final = 30.0
_ATTEMPTS: Final = 3


class Holding:
    """The socket, and the process that accepts there."""

    def __init__(self, settings: ServerSettings, kept: Callable[[str], int | None]) -> None:
        """kept: gives the descriptor of the socket of a predecessor, or None. Raises OSError."""
        self._settings = settings
        first, second = map(kept, NAMES)
        self._sockets = holding.listen((first, second))
        self._process: Process | None = None
        self._backoff = Backoff()
        # Attempts to take over what the holder of the former master has. One may have failed if its process ends soon.
        self._takes_over, self._attempts = False, 0
        self._has_handed_over = False

    @property
    def passed(self) -> list[tuple[str, int]]:
        """What a new master gets: names, and the descriptors of the sockets."""
        found = (self._sockets.holder, self._sockets.application)
        return [(name, each.fileno()) for name, each in zip(NAMES, found, strict=True)]

    @property
    def pid(self) -> int:
        """The process that holds connections; 0: there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def address(self) -> str:
        """Where the process accepts, without the first byte."""
        return os.fsdecode(self._sockets.holder_address)

    def descriptors(self, now: float) -> list[int]:
        """Descriptors to wait for: readable when a connection is passed and there is no process, or when it has
        ended."""
        if self._process is not None:
            return [self._process.handle]
        is_idle = not self._has_handed_over and now >= self._backoff.at
        return [self._sockets.holder.fileno()] if is_idle else []

    def wake_at(self, now: float) -> float | None:
        """When a process may be forked again; None: any time."""
        is_late = self._process is None and not self._has_handed_over and now < self._backoff.at
        return self._backoff.at if is_late else None

    def take_over(self) -> None:
        """The predecessor has handed over, and its holder has connections."""
        self._takes_over, self._attempts = True, _ATTEMPTS

    def tend(self, now: float, in_child: Callable[[], None]) -> None:
        """Reaps a process that has ended, and forks one when a connection waits. in_child: called in the process;
        closes what is the master's."""
        if self._process is not None and (ending := self._process.reap()) is not None:
            if not self._has_handed_over:
                self._backoff.ended(self._process.began, now)
                log.logger.error(
                    "the process that holds connections (pid %d) %s; its connections are closed, and a new one starts",
                    self._process.pid,
                    ending,
                )
                self._takes_over = self._attempts > 0 and now < self._process.began + _HAND_OVER
            self._process = None
        if self._process is not None or self._has_handed_over or now < self._backoff.at:
            return
        if not self._takes_over and not _is_readable(self._sockets.holder):
            return
        takes_over, self._takes_over = self._takes_over, False
        self._attempts -= takes_over

        def work(line: int, master: int, mask: Collection[int]) -> None:
            in_child()
            holder.work(self._sockets, self._settings, line, master, mask, takes_over=takes_over)

        try:
            self._process = companion.fork(work, now, grace=holder.GRACE + 1.0)
        except OSError as error:
            log.logger.error("cannot fork the process that holds connections: %s; retrying", denial(error))
            self._takes_over = takes_over
            self._backoff.ended(now, now)
        else:
            log.logger.info("process %d holds connections", self._process.pid)

    def reopen_logs(self) -> None:
        """Has the process open the files of its log again, after a rotation."""
        if self._process is not None:
            self._process.reopen_logs()

    def hand_over(self) -> None:
        """The successor's process takes over the connections, and then ours ends."""
        self._has_handed_over = True
        self._sockets.close()

    def close(self) -> None:
        """Ends the process: once the successor has its connections, or else with theirs."""
        if self._process is not None:
            if self._has_handed_over:
                self._process.wait(_HAND_OVER)
            self._process.end()
            self._process = None
        holding.forget(self._sockets)
        self._sockets.close()

    def forked(self, *, is_worker: bool) -> None:
        """In another process of this server: closes what is the master's."""
        if self._process is not None:
            self._process.close()
        self._sockets.holder.close()
        if not is_worker:
            self._sockets.application.close()


def _is_readable(found: socket.socket) -> bool:
    poll = select.poll()
    poll.register(found, select.POLLIN)
    return bool(poll.poll(0))
