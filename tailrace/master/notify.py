"""systemd: reports the state of the service (sd_notify(3)), and takes sockets that systemd opened (sd_listen_fds(3)).

The protocol is a few lines of text in one datagram, so no library is needed. The variables for this process are removed
from the environment: a worker, or a program that the application starts, must not report for the service.

A report never raises and never waits for more than a second: a manager that does not read must not stop the service.

Thread: the master's only one.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.system import forks

_FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START
_LONGEST: Final = 1000  # characters of a line: all lines must fit into a datagram
_SEND_TIMEOUT: Final = 1.0  # seconds, when the queue of the manager is full
LISTEN_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class Manager:
    """The notify socket of the service manager; without one, the methods do nothing.

    watchdog_interval: seconds between two calls of `watchdog`, half of what the manager allows; None: no watchdog.
    """

    def __init__(self, address: str | None = None, watchdog_interval: float | None = None) -> None:
        self.watchdog_interval = watchdog_interval if address else None
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._lost = False

    def ready(self, status: str) -> None:
        """The service serves: after the start, and again after `reloading`."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self, status: str) -> None:
        """A reload begins. The time lets the manager distinguish the `ready` of this reload from an earlier one."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """The service has begun to stop."""
        self._tell("STOPPING=1", f"STATUS={status}")

    def watchdog(self) -> None:
        """The service is alive; to be called every `watchdog_interval`."""
        self._tell("WATCHDOG=1")

    def main_process(self, pid: int, status: str) -> None:
        """The main process of the service is another one from now on, and it serves."""
        self._tell(f"MAINPID={pid}", "READY=1", f"STATUS={status}")

    def close(self) -> None:
        """Closes the socket: in a worker, which inherits it, and at the end."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        # Each line is a variable: a status with a line end must not become a second one.
        message = "\n".join(" ".join(line.splitlines())[:_LONGEST] for line in lines)
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(_SEND_TIMEOUT)
                forks.keep_from_children(self._socket)
            self._socket.sendto(message.encode(errors="replace"), self._address)
        except OSError as error:
            if not self._lost:
                log.logger.warning(
                    "NOTIFY_SOCKET: cannot report %s to the service manager: %s", lines[0], error.strerror
                )
            self._lost = True
        else:
            self._lost = False


def manager(environ: MutableMapping[str, str], pid: int) -> Manager:
    """The manager that `environ` names, for the process `pid`. Removes its variables from `environ`."""
    address = environ.pop("NOTIFY_SOCKET", None)
    interval, watched = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", str(pid))
    if not address:
        return Manager()
    if not address.startswith(("/", "@")):
        log.logger.warning(
            "NOTIFY_SOCKET: %r is neither a path nor an abstract name, so nothing is reported to the service manager",
            address,
        )
        return Manager()
    # With WATCHDOG_PID the watchdog is meant for one process, which may be another one.
    seconds = int(interval) / 2e6 if interval.isascii() and interval.isdigit() and watched == str(pid) else 0.0
    return Manager(address, seconds or None)


def passed_sockets(environ: MutableMapping[str, str], pid: int) -> list[int]:
    """The descriptors of the sockets that the manager passed to the process `pid`. Removes their variables from
    `environ`.

    Raises ConfigError for variables that cannot be understood.
    """
    for_process, count, *_ = (environ.pop(variable, "") for variable in LISTEN_VARIABLES)
    if not for_process and not count:
        return []
    if not (for_process.isascii() and for_process.isdigit() and count.isascii() and count.isdigit()):
        raise ConfigError(
            f"LISTEN_PID = {for_process!r}, LISTEN_FDS = {count!r}: must be two numbers; unset both, or let systemd "
            "set them"
        )
    if int(for_process) != pid:
        log.logger.warning(
            "LISTEN_FDS: the sockets are not used, since they were passed to process %s, and this is process %d; if a "
            "script starts Tailrace, use `exec` in it",
            for_process,
            pid,
        )
        return []
    passed = [_FIRST_DESCRIPTOR + index for index in range(int(count))]
    for each in passed:
        try:
            os.set_inheritable(each, False)
        except OSError:
            raise ConfigError(
                f"LISTEN_FDS = {count}: descriptor {each} is not open; unset LISTEN_FDS and LISTEN_PID, or "
                "let systemd set them"
            ) from None
    return passed
