"""The Rust core. Checked against the built module by `make lint`."""

from collections.abc import Mapping, Sequence
from typing import Final, final

from _typeshed.wsgi import WSGIApplication

__version__: Final[str]

SETTINGS: Final[tuple[str, ...]]
"""Names of the settings that `Server` wants; see `penstock.options.core_settings`."""

class ClientDisconnected(OSError):
    """Raised by `wsgi.input` when the client vanished before the end of the request body."""

@final
class Server:
    """A server of one application on a set of listening sockets. Methods may be called from any thread."""

    def __new__(cls, application: WSGIApplication, settings: Mapping[str, object], listeners: Sequence[int]) -> Server:
        """settings: a value for each name in SETTINGS (sizes in bytes, times in seconds). listeners: descriptors of
        listening sockets, duplicated. Raises ValueError for unknown, missing or unfit settings, OSError when a
        resource is refused."""
    def start(self) -> None:
        """Starts the pool threads ("penstock-0", ...) and returns."""
    def run_here(self) -> None:
        """Serves on the calling thread until stopped. Raises what a signal handler raises, KeyboardInterrupt for
        one."""
    def stop(self, graceful_timeout: float) -> None:
        """Begins to stop and returns: accepts nothing more, closes idle connections, gives requests in flight
        `graceful_timeout` seconds. Called again with 0 it stops now. May be called from a signal handler."""
    def join(self, timeout: float | None = None) -> bool:
        """Waits until the server has stopped, for at most `timeout` seconds; False when it has not. Releases the
        GIL."""
    def stats(self) -> dict[str, int]:
        """Counters and gauges: connections, requests, threads, running, queued."""
    def reopen_logs(self) -> None:
        """Opens the access log again under its name, after a rotation."""
