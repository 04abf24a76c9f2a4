"""Where connections are passed that are to be held: the abstract address of the process, or the thread, that holds
them.

A server has one. Its workers inherit the address, and so does `tailrace.publish` in them.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Final

# The queue of the socket: connections wait there while the holder is replaced.
_BACKLOG: Final = 4096

# The address of this process's server; None: it has none.
_address: bytes | None = None


def address() -> bytes | None:
    """The abstract address, without its first byte; None: this process belongs to no server."""
    return _address


def listen(kept: int | None = None) -> socket.socket:
    """The socket where connections are passed. Its address is that of this process from now on. kept: the descriptor of
    the one that a predecessor has. Raises OSError."""
    global _address
    if kept is not None:
        listener = socket.socket(fileno=kept)
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0tailrace-{os.getpid()}-{secrets.token_hex(8)}")
    listener.listen(_BACKLOG)
    name = listener.getsockname()
    _address = (name if isinstance(name, bytes) else os.fsencode(name))[1:]
    return listener


def forget() -> None:
    """This process belongs to no server any more."""
    global _address
    _address = None
