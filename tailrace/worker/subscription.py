"""A callback for the case that the client of a request disconnects (`environ["tailrace.on_disconnect"]`).

Thread: that of the request makes and ends it; `run` is called on another thread, or with `--gevent` in a greenlet.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable


class Subscription:
    """Calls `callback()` at most once. As a context manager, it ends with the block."""

    __slots__ = ("_callbacks", "_running")

    def __init__(self, callback: Callable[[], object]) -> None:
        # A list, because `pop` either takes the callback or raises, whatever other threads do.
        self._callbacks = [callback]
        # A callback may remove its own subscription.
        self._running = threading.RLock()

    def run(self) -> None:
        """The client has disconnected. Does not raise."""
        with self._running:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            try:
                callback()
            except BaseException:
                log.logger.error("exception in a callback of tailrace.on_disconnect", exc_info=True)

    def end(self) -> None:
        """The callback is not called from now on. Does not wait for one that is running."""
        self._callbacks.clear()

    def remove(self) -> None:
        """The callback is neither called nor running from now on: waits while it runs."""
        self.end()
        with self._running:
            pass

    def __enter__(self) -> Subscription:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()
