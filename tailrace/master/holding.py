"""The holder, the master's side: the socket where connections are passed to it, and the process, which is forked when
the first one comes, watched and replaced. And the bus process, which connects to it (`--publish-bus`).

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
from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.master.companion import Supervised
from tailrace.system import holding
from tailrace.system.bus_address import Address, missing, parse
from tailrace.worker import holder

# By which a new master asks for the sockets.
NAMES: Final = ("holder", "application")
# How long a master that has handed over waits for the next one to take over its connections (seconds).
_HAND_OVER: Final = 30.0
_ATTEMPTS: Final = 3


class Holding:
    """The socket, and the process that accepts there."""

    def __init__(self, settings: ServerSettings, kept: Callable[[str], int | None]) -> None:
        """kept: gives the descriptor of the socket of a predecessor, or None. Raises OSError, ConfigError."""
        self._settings = settings
        self._address = parse(settings.publish_bus) if settings.publish_bus else None
        if self._address is not None and (lack := missing(self._address)) is not None:
            raise ConfigError(f"--publish-bus {lack}")
        first, second = map(kept, NAMES)
        self._sockets = holding.listen((first, second))
        self._holder = Supervised("the process that holds connections")
        self._bus = Supervised("the bus process")
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
        return self._holder.pid

    @property
    def address(self) -> str:
        """Where the process accepts, without the first byte."""
        return os.fsdecode(self._sockets.holder_address)

    def descriptors(self, now: float) -> list[int]:
        """Descriptors to wait for: readable when a connection is passed and there is no process, or when it has
        ended."""
        found = self._bus.descriptors() + self._holder.descriptors()
        if self._holder.is_due(now) and not self._has_handed_over:
            found.append(self._sockets.holder.fileno())
        return found

    def wake_at(self, now: float) -> float | None:
        """When a process may be forked again; None: any time."""
        each = [self._holder.wake_at(), self._bus.wake_at() if self._address else None]
        late = [at for at in each if at is not None and at > now]
        return min(late) if late and not self._has_handed_over else None

    def take_over(self) -> None:
        """The predecessor has handed over, and its holder has connections."""
        self._takes_over, self._attempts = True, _ATTEMPTS

    def tend(self, now: float, in_child: Callable[[], None]) -> None:
        """Reaps a process that has ended, and forks one when a connection waits. in_child: called in the process;
        closes what is the master's."""
        self._tend_holder(now, in_child)
        if self._address is not None:
            self._tend_bus(self._address, now, in_child)

    def _tend_holder(self, now: float, in_child: Callable[[], None]) -> None:
        if (ended := self._holder.reap(now)) and not self._has_handed_over:
            process, ending = ended
            log.logger.error(
                "the process that holds connections (pid %d) %s; its connections are closed, and a new one starts",
                process.pid,
                ending,
            )
            self._takes_over = self._attempts > 0 and now < process.began + _HAND_OVER
        if self._has_handed_over or not self._holder.is_due(now):
            return
        if not self._takes_over and not _is_readable(self._sockets.holder):
            return
        takes_over, self._takes_over = self._takes_over, False
        self._attempts -= takes_over

        def work(line: int, master: int, mask: Collection[int]) -> None:
            in_child()
            self._bus.forked()
            holder.work(self._sockets, self._settings, line, master, mask, takes_over=takes_over)

        if made := self._holder.fork(work, now, grace=holder.GRACE + 1.0):
            log.logger.info("process %d holds connections", made.pid)
        else:
            self._takes_over = takes_over

    def _tend_bus(self, address: Address, now: float, in_child: Callable[[], None]) -> None:
        if (ended := self._bus.reap(now)) and not self._has_handed_over:
            log.logger.error("the bus process (pid %d) %s; replacing it", ended[0].pid, ended[1])
        if self._has_handed_over or not self._bus.is_due(now):
            return
        # Here, since most servers do not need it.
        from tailrace.bus import process

        def work(line: int, master: int, mask: Collection[int]) -> None:
            in_child()
            self._holder.forked()
            self._sockets.close()
            process.work(address, self._sockets.holder_address, self._settings.app or "", line, master, mask)

        self._bus.fork(work, now, grace=process.GRACE + 1.0)

    def reopen_logs(self) -> None:
        """Has the process open the files of its log again, after a rotation."""
        self._holder.reopen_logs()
        self._bus.reopen_logs()

    def hand_over(self) -> None:
        """The successor's process takes over the connections, and then ours ends."""
        self._has_handed_over = True
        self._sockets.close()
        if self._bus.process is not None:
            self._bus.process.tell(b".")

    def close(self) -> None:
        """Ends the processes: the holder once the successor has its connections, or else with theirs."""
        self._bus.end()
        if self._holder.process is not None and self._has_handed_over:
            self._holder.process.wait(_HAND_OVER)
        self._holder.end()
        holding.forget(self._sockets)
        self._sockets.close()

    def forked(self, *, is_worker: bool) -> None:
        """In another process of this server: closes what is the master's."""
        self._holder.forked()
        self._bus.forked()
        self._sockets.holder.close()
        if not is_worker:
            self._sockets.application.close()


def _is_readable(found: socket.socket) -> bool:
    poll = select.poll()
    poll.register(found, select.POLLIN)
    return bool(poll.poll(0))
