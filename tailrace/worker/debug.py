"""The application on the main thread, for `--debug`, and how signals end it there.

Thread: the main one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from types import FrameType
from typing import NoReturn

from tailrace._tailrace import Server
from tailrace.system import signals
from tailrace.worker import core


class Stopped(SystemExit):
    """Raised through a request to end the server; an application or a hook may raise SystemExit, too."""


class MainThreadStop(signals.OwnHandler):
    """Handler of the signals that stop a server on the main thread.

    The first signal lets the request in flight finish. A second one, or the end of the graceful time, raises Stopped
    through the request; not KeyboardInterrupt, since `pdb` takes that at its prompt for its own.

    A signal that comes while another one is handled waits until that is done: Stopped in the middle of `logging`, or
    of the start of a thread, could leave a lock taken for ever.

    is_quiet: in a worker. The master logs the signals and counts them; here only the end of the time raises.
    """

    def __init__(self, server: Server, graceful_timeout: float, *, is_quiet: bool = False) -> None:
        self._server, self._graceful, self._is_quiet = server, graceful_timeout, is_quiet
        self._stops = 0
        # When the graceful time ends.
        self._until = 0.0
        self._counted = signals.Stops()
        self._is_over = False
        self._clock: threading.Timer | None = None
        # The signals that are still to be handled, each with whether it stops the server at once.
        self._pending: deque[tuple[int, bool]] = deque()
        self._is_handling = False
        self._is_closed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self._take(number, False)

    def stop_now(self, number: int, frame: FrameType | None) -> None:
        """The handler of a signal that stops at once. Raises Stopped."""
        self._take(number, True)

    def _take(self, number: int, at_once: bool) -> None:
        # When the graceful time is over, the server itself sends the signal.
        if not self._is_over and not self._counted.counts(number, time.monotonic()):
            return
        self._pending.append((number, at_once))
        while self._pending and not self._is_handling:
            self._is_handling = True
            try:
                # Another signal between two of these lines runs this method, too, and may have taken the entry.
                if self._pending:
                    self._handle(*self._pending.popleft())
            finally:
                self._is_handling = False

    def _handle(self, number: int, at_once: bool) -> None:
        if self._is_closed:
            return
        if at_once:
            self._end(number)
        elif self._stops == 0 and self._graceful > 0:
            self._stops += 1
            self._begin(number)
        elif self._is_over or not self._is_quiet:
            self._end(number)

    def _begin(self, number: int) -> None:
        self._until = time.monotonic() + self._graceful
        if self._is_quiet:
            self._server.stop(self._graceful)
        else:
            core.begin_stop(self._server, self._graceful, number)
        # A thread of its own: this one may be in the application, or at the prompt of a debugger.
        clock = threading.Timer(self._graceful, self._interrupt, (threading.get_ident(),))
        clock.daemon = True
        clock.start()
        self._clock = clock

    def _interrupt(self, thread: int) -> None:
        self._is_over = True
        # To that thread, so that its read from the terminal is interrupted; SIGTERM, which no debugger handles itself.
        signal.pthread_kill(thread, signal.SIGTERM)

    def close(self) -> None:
        """The server has ended: from now on the timer sends no signal, and no signal raises."""
        self._is_closed = True
        if self._clock is not None:
            self._clock.cancel()
            self._clock.join()

    def _end(self, number: int) -> NoReturn:
        self._stops += 1
        self._until = 0.0
        if self._is_quiet or self._is_over:
            self._server.stop(0.0)
        else:
            core.begin_stop(self._server, 0.0, number)
        raise Stopped(0)

    def left(self) -> float:
        """What is left of the graceful time (seconds)."""
        return max(0.0, self._until - time.monotonic())

    @property
    def was_asked_for(self) -> bool:
        """True once a signal came."""
        return self._stops > 0


def run_here(server: Server, stop: MainThreadStop) -> None:
    """Serves on the main thread, where `pdb` can use the terminal; the core has Python handle signals meanwhile.

    stop: the handler of the signals that stop it.
    """
    with signals.handled({signal.SIGUSR1: lambda number, frame: core.reopen_logs(server)}):
        try:
            try:
                server.run_here()
            finally:
                # At once: a signal may come, or the graceful time end, just after the last request has ended.
                stop.close()
        except (SystemExit, SystemError):  # SystemError: from two signals at once at the prompt of a debugger
            # Again: a signal may have come before the first call.
            stop.close()
            if not stop.was_asked_for:
                raise
            core.abandoned(server)
        finally:
            server.stop(0.0)
