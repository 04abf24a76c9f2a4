"""How code in a process that serves learns that its server drains, and has it wait.

Thread: any.
"""

from __future__ import annotations

import socket
import weakref
from typing import TYPE_CHECKING, Final

from tailrace.system import forks

if TYPE_CHECKING:
    from tailrace._tailrace import Server

# The servers of this process, in the order in which they were made.
_servers: Final[list[weakref.ref[Server]]] = []


def note(server: Server) -> None:
    """This process has this server."""
    _servers[:] = [each for each in _servers if each() is not None]
    _servers.append(weakref.ref(server))


def follow() -> socket.socket | None:
    """A socket that is at its end when the server of this process drains. None: there is no server.

    Until the caller closes it, that server waits, and takes the requests of its sessions, but no longer than the
    graceful time-out. Raises OSError.
    """
    server = _servers[-1]() if _servers else None
    if server is None:
        return None
    ours, theirs = socket.socketpair()
    with theirs:
        forks.keep_from_children(ours)
        server.follow(theirs.fileno())
    return ours
