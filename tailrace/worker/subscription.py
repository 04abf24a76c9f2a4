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

    __slots__ = ("_callbacks", "_is_due", "_running")

    def __init__(self, callback: Callable[[], object]) -> None:
        # A list, because `pop` either takes the callback or raises, whatever other threads do.
        self._callbacks = [callback]
        self._is_due = False
        # A callback may remove its own subscription.
        self._running = threading.RLock()

    @property
    def is_over(self) -> bool:
        """Whether the callback was called, or is not to be called any more."""
        return not self._callbacks

    def claim(self) -> None:
        """The client has disconnected, and an exception will end the block: the callback is to be called even then."""
        self._is_due = True

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
        """The callback is neither called nor running from now on: waits while it runs. Calls it if it is due."""
        if self._is_due:
            self.run()
        self.end()
        with self._running:
            pass

    def __enter__(self) -> Subscription:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()
