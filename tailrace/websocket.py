"""The socket in `environ["werkzeug.socket"]`, with which an application takes over the connection of a WebSocket
request (RFC 6455). The core calls these functions; applications use the socket.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, cast

# Attributes that do not take over the connection. `repr(environ)` does not either.
_HARMLESS: Final = frozenset(
    ("close", "family", "type", "proto", "gettimeout", "timeout", "getpeername", "getsockname")
)

_offered: Final[weakref.WeakKeyDictionary[socket.socket, Callable[[], object]]] = weakref.WeakKeyDictionary()

# Held while a socket is taken over. With gevent, it switches greenlets.
_taking: Final = threading.RLock()


def offer(descriptor: int, take_over: Callable[[], object], is_gevent: bool) -> socket.socket:
    """Returns a socket that owns this descriptor. Its first use calls `take_over`, which may raise ConnectionError.
    From then on, it is an ordinary blocking socket. With is_gevent, it blocks only its greenlet."""
    plain = _blocking_greenlet() if is_gevent else socket.socket
    try:
        made = plain(fileno=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    _offered[made] = take_over
    # Both classes have the same layout.
    made.__class__ = _offered_class(plain)  # type: ignore[arg-type]
    return made


@functools.cache
def _blocking_greenlet() -> type[socket.socket]:
    """gevent's socket class, with a `send` that blocks until it has sent all data, like that of a blocking socket.
    simple-websocket relies on this."""
    base: type[socket.socket] = importlib.import_module("gevent.socket").socket

    class BlockingSocket(base):  # type: ignore[valid-type, misc]
        __slots__ = ()

        def send(self, data: bytes, flags: int = 0) -> int:
            sent: int = base.send(self, data, flags)
            if type(data) is bytes and sent == len(data):
                return sent
            rest = memoryview(data).cast("B")
            while sent < len(rest):
                sent += base.send(self, rest[sent:], flags)
            return sent

    return BlockingSocket


def withdraw(made: socket.socket) -> None:
    """Closes a socket that was not used. A used socket belongs to the application: a thread may still read from it."""
    if _offered.pop(made, None) is not None:
        made.__class__ = _base(made)
        made.close()


def _base(made: socket.socket) -> type[socket.socket]:
    return cast("type[socket.socket]", type(made).__bases__[0])


@functools.cache
def _offered_class(plain: type[socket.socket]) -> type[socket.socket]:
    """A subclass of `plain` whose instances become instances of `plain` when they are used."""

    class OfferedSocket(plain):  # type: ignore[valid-type, misc]
        """A connection that can be taken over."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name not in _HARMLESS and not name.startswith("__"):
                _use(self)
            return plain.__getattribute__(self, name)

        def close(self) -> None:
            withdraw(self)

        def __repr__(self) -> str:
            return "<the socket of a request; its use takes over the connection>"

    return OfferedSocket


def _use(made: socket.socket) -> None:
    # Another thread waits until the socket is an ordinary one.
    with _taking:
        take_over = _offered.pop(made, None)
        if take_over is None:
            return
        plain = _base(made)
        try:
            take_over()
        except BaseException:
            made.__class__ = plain
            made.close()
            raise
        if plain is socket.socket:
            # The server's sockets do not block.
            plain.setblocking(made, True)
        made.__class__ = plain
