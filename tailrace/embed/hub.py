"""A server on the hub of a program that runs gevent already: `tailrace.gevent.Server`.

Nothing is patched and no signal is handled here; the program does both. Several servers may share a hub, and a process
may have several hubs.

Thread: that of the hub. `stop`, `stats`, `url` and `address` may be called on any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import gevent
import gevent.monkey
from gevent.event import Event
from greenlet import getcurrent

from tailrace.cli import load
from tailrace.cli.option import Place
from tailrace.cli.settings import from_keywords
from tailrace.embed import server
from tailrace.greenlets.hub import WorkerGreenlets
from tailrace.system import binds
from tailrace.worker import certificates, core
from tailrace.worker.announce import announce
from tailrace.worker.prepare import prepared

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from typing_extensions import Unpack

    from tailrace.embed.keywords import HubKeywords

# How long the end of the program waits for the threads of the server, and `stop` on another thread for the hub
# (seconds).
_LAST_WAIT: Final = 1.0
_allocate_lock = gevent.monkey.get_original("_thread", "allocate_lock")


class Server(server.Server):
    """Serves an application on the calling thread's hub, each request in a greenlet; a context at whose end it stops.

        with tailrace.gevent.Server(app, bind="127.0.0.1:8000") as server:
            gevent.sleep(60)

    bind: one address or several, as for `--bind`. keywords: the options of docs/options.md that it names for
    `tailrace.gevent.serve`. Raises ConfigError and LoadError.
    """

    def __init__(
        self, app: WSGIApplication, *, bind: str | int | Sequence[str] = "127.0.0.1:0", **keywords: Unpack[HubKeywords]
    ) -> None:
        super().__init__()
        settings = from_keywords({"bind": bind, **keywords}, Place.HUB).effective
        load.check(app, "app")
        # A mistake in an address is an error here, not only where the server starts.
        binds.parse_all(settings.bind)
        binds.parse_published(settings.publish_bind)
        self._app = app
        self._settings = replace(settings, gevent=True)
        self._resources = contextlib.ExitStack()
        self._greenlets: WorkerGreenlets | None = None
        self._ended = Event()
        # Locked while it serves: for `stop` on a thread without a hub.
        self._served = _allocate_lock()
        # The process that serves: a child that the program forks does not.
        self._process = 0

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self is of Python 3.11
        if self._greenlets is None:
            self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Binds the addresses; it serves from then on, while the hub runs.

        Raises BindError and ConfigError, and RuntimeError when it was started before.
        """
        if self._greenlets is not None:
            raise RuntimeError("this server has already been started, and cannot be started again; create another one")
        with contextlib.ExitStack() as stack:
            ready = stack.enter_context(prepared(self._settings))
            settings, listeners = ready.settings, ready.listeners
            stack.enter_context(certificates.followed(ready.certificates))
            made = core.make(self._app, settings, listeners, holds=ready.holding)
            greenlets = WorkerGreenlets(made, self._end, is_embedded=True)
            self._located(listeners)
            with core.starting():
                greenlets.start()
            announce(settings, self._app, listeners)
            for listener in listeners:
                listener.hand_over()
            self._resources = stack.pop_all()
        self._greenlets = greenlets
        self._process = os.getpid()
        self._served.acquire()
        atexit.register(self._leave)

    def stop(self, timeout: float | None = None) -> None:
        """Accepts nothing more, and waits, while the hub runs, until the requests in flight are done.

        timeout: how long they may take (seconds); None: `graceful_timeout`. Called by a request or by a callback of the
        hub, it does not wait. A further call can only shorten the time, with 0.
        """
        greenlets = self._greenlets
        if greenlets is None or self.closed:
            return
        greenlets.server.stop(self._settings.graceful_timeout if timeout is None else timeout)
        if threading.get_native_id() != greenlets.thread:
            greenlets.server.join()
            # Not for ever: the hub may have ended, or be blocked.
            if self._served.acquire(timeout=_LAST_WAIT):
                self._served.release()
        elif not greenlets.has(getcurrent()) and getcurrent() is not greenlets.hub:
            self._ended.wait()

    def serve_forever(self, stop_timeout: float | None = None) -> None:
        """Starts the server, if it was not started, and waits for its end; stops it when an exception ends the wait.

        Raises ServerError when an internal error ended it.
        """
        if self._greenlets is None:
            self.start()
        try:
            if not self.closed:
                self._ended.wait()
        finally:
            self.stop(stop_timeout)
        if self._greenlets is not None:
            core.check(self._greenlets.server)

    @property
    def started(self) -> bool:
        """True from `start` until it has ended."""
        return self._greenlets is not None and not self.closed

    @property
    def closed(self) -> bool:
        """True once it has ended; always True in a process that the program has forked since."""
        return self._ended.is_set() or (self._greenlets is not None and self._process != os.getpid())

    def stats(self) -> dict[str, int]:
        """Counters and gauges: connections, requests, running, queued, greenlets_made (greenlets that were made for
        requests; each may run many) and others; empty until it is started."""
        if self._greenlets is None:
            return {}
        return self._greenlets.server.stats() | {"greenlets_made": self._greenlets.made}

    def _end(self) -> None:
        """Called in the hub, where nothing may wait, when the core has ended."""
        # In a greenlet of its own: another one may hold a lock of the program's logging.
        gevent.spawn(self._say_and_end)

    def _say_and_end(self) -> None:
        try:
            if self._greenlets is not None:
                core.abandoned(self._greenlets.server)
        finally:
            atexit.unregister(self._leave)
            self._resources.close()
            self._ended.set()
            self._served.release()

    def _leave(self) -> None:
        """At the end of the program, when its hub does not run any more: ends the server's threads before the
        interpreter."""
        if self._greenlets is not None and not self.closed:
            self._greenlets.monitor.silence()
            self._greenlets.server.stop(0.0)
            self._greenlets.server.join(_LAST_WAIT)
            self._greenlets.monitor.join(_LAST_WAIT)
            self._resources.close()
