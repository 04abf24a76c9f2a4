"""A server on the hub of a program that runs gevent already: `penstock.gevent.Server`.

Nothing is patched and no signal is handled here; that is the program's. Several servers may share a hub, and several
hubs a process.

Thread: that of the hub. `stop`, `stats` and what tells the address may be called on any.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import gevent.monkey
from gevent.event import Event
from greenlet import getcurrent

from penstock import load, options, sockets, worker
from penstock.errors import ConfigError
from penstock.greenlets.hub import Carriers
from penstock.settings import from_keywords, plain

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_KEYWORDS: Final = tuple(
    name
    for name, option in options.BY_NAME.items()
    if option.group not in (options.APPLICATION, options.PROCESSES, options.THREADS)
    and name not in ("gevent", "umask", "log_level")
)
# What the server's own threads have to end in after the program's end, and its hub after its own (seconds).
_PATIENCE: Final = 1.0
_allocate_lock = gevent.monkey.get_original("_thread", "allocate_lock")


class Server:
    """Serves an application on the calling thread's hub, each request in a greenlet; a context at whose end it stops.

        with penstock.gevent.Server(app, bind="127.0.0.1:8000") as server:
            gevent.sleep(60)

    bind: one address or several, as for `--bind`. keywords: the options of docs/options.md but those of the groups
    Application, Processes and Threads, and but `gevent`, `umask` and `log_level`. Raises ConfigError and LoadError.
    """

    def __init__(self, app: WSGIApplication, *, bind: str | Sequence[str] = "127.0.0.1:0", **keywords: Any) -> None:
        settings = from_keywords({"bind": bind, **keywords}, allowed=_KEYWORDS)
        load.check(app, "app")
        self._app = app
        self._chosen = plain(settings) | {"gevent": True}
        self._addresses = [sockets.parse(text) for text in self._chosen["bind"]]
        self._resources = contextlib.ExitStack()
        self._urls: list[str] = []
        self._names: list[tuple[str, int] | str] = []
        self._carriers: Carriers | None = None
        self._ended = Event()
        # Taken while it serves, for threads without a hub.
        self._served = _allocate_lock()
        # Where it serves: not in a process that the program forks.
        self._process = 0

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self is of Python 3.11
        if self._carriers is None:
            self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Binds the addresses; it serves from then on, while the hub runs.

        Raises BindError and ConfigError, and RuntimeError when it was started before.
        """
        if self._carriers is not None:
            raise RuntimeError("this server has been started before; make another one")
        chosen = self._chosen
        with contextlib.ExitStack() as stack:
            listeners = stack.enter_context(
                sockets.bound(self._addresses, backlog=chosen["backlog"], socket_mode=chosen["socket_mode"])
            )
            server = worker.core(self._app, chosen, listeners)
            carriers = Carriers(server, chosen["hub_warn"], self._end, is_embedded=True)
            self._urls = [listener.url for listener in listeners]
            self._names = [_name(listener) for listener in listeners]
            try:
                carriers.start()
            except OSError as error:
                raise ConfigError(f"cannot start: {error}") from None
            for listener in listeners:
                listener.hand_over()
            self._resources = stack.pop_all()
        self._carriers = carriers
        self._process = os.getpid()
        self._served.acquire()
        atexit.register(self._leave)

    def stop(self, timeout: float | None = None) -> None:
        """Accepts nothing more, and waits, with the hub running, until the requests in flight are done.

        timeout: what they have for that (seconds); None: `graceful_timeout`. A request that calls this does not wait
        for its own end; nor does a callback of the hub. Further calls may only shorten the time, with 0.
        """
        carriers = self._carriers
        if carriers is None or self.closed:
            return
        carriers.server.stop(self._chosen["graceful_timeout"] if timeout is None else timeout)
        if threading.get_native_id() != carriers.thread:
            carriers.server.join()
            # The hub may have ended, or be kept.
            if self._served.acquire(timeout=_PATIENCE):
                self._served.release()
        elif not carriers.carries(getcurrent()) and getcurrent() is not carriers.hub:
            self._ended.wait()
            worker.abandoned(carriers.server)

    def serve_forever(self, stop_timeout: float | None = None) -> None:
        """Starts, if it has not, and waits for the server's end; stops it when an exception ends the wait."""
        if self._carriers is None:
            self.start()
        try:
            if not self.closed:
                self._ended.wait()
        finally:
            self.stop(stop_timeout)

    @property
    def url(self) -> str:
        """Where it is reached, without a final slash: that of the first address."""
        return self._urls[0] if self._urls else ""

    @property
    def address(self) -> tuple[str, int] | str:
        """Host and port of the first address, or the path of a UNIX socket; empty until it is started."""
        return self._names[0] if self._names else ""

    @property
    def started(self) -> bool:
        """True from `start` until it has ended."""
        return self._carriers is not None and not self.closed

    @property
    def closed(self) -> bool:
        """True once it has ended; in a process that the program forked it has."""
        return self._ended.is_set() or (self._carriers is not None and self._process != os.getpid())

    def stats(self) -> dict[str, int]:
        """Counters and gauges: connections, requests, running, queued, carriers_made (greenlets that were made for
        requests, and used again) and others; empty until it is started."""
        if self._carriers is None:
            return {}
        return self._carriers.server.stats() | {"carriers_made": self._carriers.made}

    def _end(self) -> None:
        """In the hub: the core has ended."""
        atexit.unregister(self._leave)
        self._resources.close()
        self._ended.set()
        self._served.release()

    def _leave(self) -> None:
        """The program ends, and its hub does not run any more: the server's own threads end before the interpreter."""
        if self._carriers is not None and not self.closed:
            self._carriers.server.stop(0.0)
            self._carriers.server.join(_PATIENCE)
            self._carriers.monitor.join(_PATIENCE)
            self._resources.close()


def _name(listener: sockets.Listener) -> tuple[str, int] | str:
    name = listener.socket.getsockname()
    return name[:2] if isinstance(name, tuple) else name.decode() if isinstance(name, bytes) else name
