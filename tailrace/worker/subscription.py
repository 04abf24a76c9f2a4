"""A callback for the case that the client of a request disconnects (`environ["tailrace.on_disconnect"]`).

Thread: the request's thread makes and ends it. `run` is called on another thread, or with `--gevent` in a greenlet.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable


class Subscription:
    """Calls `callback()` at most once. As a context manager, it ends with the block."""

    __slots__ = ("_callbacks", "_has_left", "_running")

    def __init__(self, callback: Callable[[], object], has_left: Callable[[], bool]) -> None:
        # A list, because `pop` either takes the callback or raises, whatever other threads do.
        self._callbacks = [callback]
        self._has_left = has_left
        # A callback may remove its own subscription.
        self._running = threading.RLock()

    @property
    def is_over(self) -> bool:
        """Whether the callback was called, or is not to be called any more."""
        return not self._callbacks

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

    def finish(self) -> None:
        """Calls a pending callback after the request has ended and its client has disconnected. Does not wait."""
        if not self._callbacks:
            return
        # On another thread, because the callback may wait until the request ends.
        try:
            threading.Thread(target=self.run, name="tailrace-calling", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            self.run()

    def remove(self) -> None:
        """Ends the subscription and waits for a running callback. If the client has disconnected, which the request may
        have noticed first, calls a pending callback before that."""
        if self._callbacks and self._has_left():
            self.run()
        self.end()
        with self._running:
            pass

    def __enter__(self) -> Subscription:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()
