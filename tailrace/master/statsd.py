"""`--statsd`: the master sends the figures of the server by UDP, every ten seconds. Sending never waits.

Thread: the master's only one.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Final

from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.status.snapshot import Snapshot
from tailrace.status.statsd import Lines, packets
from tailrace.system import addresses
from tailrace.system.addresses import TcpAddress

# How often the figures are sent (seconds): as often as statsd itself hands them on.
INTERVAL: Final = 10.0


class Statsd:
    """Sends to one address. Its first figures are sent when the first worker serves, or later."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lines = Lines()
        self._at = float("-inf")
        self._has_failed = False

    def wake_at(self) -> float:
        """When it is to be tended next."""
        return self._at

    def tend(self, take: Callable[[], Snapshot], now: float) -> None:
        """Sends the figures if it is time. take: takes the snapshot."""
        if now >= self._at:
            self._at = now + INTERVAL
            self.send(take)

    def send(self, take: Callable[[], Snapshot]) -> None:
        """Sends the figures now. What the network does not accept is lost; the first time, the log says so."""
        try:
            for packet in packets(self._lines.of(take())):
                self._send(packet)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                log.logger.warning("--statsd: cannot send metrics: %s; trying again", error.strerror or error)

    def _send(self, packet: bytes) -> None:
        # A refusal is that of an earlier datagram, and is told once: this one has not been sent then.
        for _ in range(2):
            with contextlib.suppress(ConnectionRefusedError):
                self._socket.send(packet)
                return

    def close(self) -> None:
        """Closes the socket; also called in processes that inherit it."""
        self._socket.close()


def opened(text: str) -> Statsd | None:
    """Finds the address; None, with a warning in the log, when there is no such host.

    Raises ConfigError for a text that is no address.
    """
    try:
        address = addresses.parse(text, "statsd")
    except ConfigError:
        address = None
    if not isinstance(address, TcpAddress) or not address.host or not address.port:
        raise ConfigError(f"--statsd {text!r}: write host:port, as in 127.0.0.1:8125")
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.connect(where)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        reason = error.strerror or error
        log.logger.warning("--statsd: cannot send to %s: %s; the server starts without it", address, reason)
        return None
    return Statsd(sock)
