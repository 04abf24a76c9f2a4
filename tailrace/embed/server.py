"""A server embedded in a program, as `tailrace.serve_in_thread` and `tailrace.gevent.serve` provide it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tailrace.system.sockets import Listener


class Server(ABC):
    """A server and its addresses. These methods and properties may be used on any thread."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._located(listeners)

    def __repr__(self) -> str:
        """Names the public class and the URL: whoever takes the server for its URL sees this."""
        return f"<tailrace.Server, url={self.url!r}>"

    def _located(self, listeners: Sequence[Listener]) -> None:
        """Stores the addresses once they are bound."""
        of_application = [listener for listener in listeners if not listener.publishes]
        self._urls = [listener.url for listener in of_application]
        self._names = [_name(listener) for listener in of_application]

    @property
    def url(self) -> str:
        """URL of the first address, without a final slash; empty until it is bound."""
        return self._urls[0] if self._urls else ""

    @property
    def address(self) -> tuple[str, int] | str:
        """Host and port of the first address, or the path of a UNIX socket; empty until it is bound."""
        return self._names[0] if self._names else ""

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Counters and gauges: connections, requests, running, queued and others."""

    @abstractmethod
    def stop(self, timeout: float | None = None) -> None:
        """Stops accepting connections, and waits until the requests in flight have ended.

        timeout: maximum wait (seconds); None: `graceful_timeout`. A request of this server that calls it does not
        wait. A later call can only shorten the wait, with 0."""


def _name(listener: Listener) -> tuple[str, int] | str:
    name = listener.socket.getsockname()
    return name[:2] if isinstance(name, tuple) else name.decode() if isinstance(name, bytes) else name
