"""Which documents of other servers are delivered, and which of them are missing.

A document is delivered in its turn, or not at all: a server that is asked for a number sends everything from there on
again. So nothing has to wait here. Plain data: one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# How long a missing document is waited for, since the last one that came in its turn (seconds).
GIVE_UP: Final = 10.0
# How long until it is asked for again (seconds).
AGAIN: Final = 1.0
# Servers that are known: with more, those that have been silent for longest are forgotten.
MAX_SERVERS: Final = 1_000
# A server that was silent for this long (seconds) is not connected, and later has ended.
SILENT: Final = 15.0
ENDED: Final = 3600.0


@dataclass
class _Server:
    # The number of the last document that was delivered, and of the last one that is known to exist.
    delivered: int
    known: int
    seen_at: float
    # Since when something is missing, and when it was asked for.
    missing_since: float | None = None
    asked_at: float = float("-inf")


class Order:
    """delivered: by the name of a server, the number of the last document that the holder has got of it."""

    def __init__(self, delivered: dict[str, int], now: float) -> None:
        self._servers = {name: _Server(number, number, now - SILENT) for name, number in delivered.items()}
        self.lost = 0

    @property
    def delivered(self) -> dict[str, int]:
        """As for the constructor."""
        return {name: each.delivered for name, each in self._servers.items()}

    def servers(self, now: float) -> int:
        """How many other servers are connected."""
        return sum(each.seen_at + SILENT > now for each in self._servers.values())

    def document(self, name: str, number: int, now: float) -> bool:
        """A document has come. Returns whether it is to be delivered now."""
        # One that has not said what it has may be sending old documents again, for another server.
        if (server := self._servers.get(name)) is None:
            return False
        server.seen_at = now
        if number <= server.delivered:
            return False
        server.known = max(server.known, number)
        is_next = number == server.delivered + 1
        if is_next:
            server.delivered = number
            if server.missing_since is not None:
                # They come, so they are not asked for again yet.
                server.missing_since = server.asked_at = now
        self._note(server, now)
        return is_next

    def state(self, name: str, last: int, first: int, now: float) -> None:
        """A server says the number of its last document, and that of the first one that it still has."""
        if (server := self._servers.get(name)) is None:
            if len(self._servers) >= MAX_SERVERS:
                for each in sorted(self._servers, key=lambda known: self._servers[known].seen_at)[: MAX_SERVERS // 2]:
                    del self._servers[each]
            # This one has joined later: what was before is not missing.
            server = self._servers[name] = _Server(last, last, now)
        server.seen_at = now
        server.known = max(server.known, last)
        if first - 1 > server.delivered:
            self._skip(server, first - 1)
        self._note(server, now)

    def resume(self, now: float) -> None:
        """Nobody could be asked until now."""
        for server in self._servers.values():
            if server.missing_since is not None:
                server.missing_since, server.asked_at = now, float("-inf")

    def due(self, now: float) -> list[tuple[str, int]]:
        """What is to be asked for: servers, and the number from which on."""
        asks = []
        for name, server in list(self._servers.items()):
            if server.missing_since is None:
                if server.seen_at + ENDED <= now:
                    del self._servers[name]
            elif now - server.missing_since >= GIVE_UP:
                self._skip(server, server.known)
                self._note(server, now)
            elif now - server.asked_at >= AGAIN:
                server.asked_at = now
                asks.append((name, server.delivered + 1))
        return asks

    def _skip(self, server: _Server, to: int) -> None:
        """Documents up to this number do not come any more."""
        self.lost += to - server.delivered
        server.delivered, server.known = to, max(server.known, to)

    def _note(self, server: _Server, now: float) -> None:
        """Notes since when something is missing."""
        if server.delivered >= server.known:
            server.missing_since = None
        elif server.missing_since is None:
            server.missing_since, server.asked_at = now, float("-inf")
