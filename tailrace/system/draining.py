"""How code in a process that serves learns that its server drains, and has it wait.

Thread: any.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import weakref
from collections.abc import Container
from typing import TYPE_CHECKING, Final

from tailrace.system import forks

if TYPE_CHECKING:
    from tailrace._tailrace import Server

# The servers of this process, with their numbers, in the order in which they were made.
_servers: Final[list[tuple[int, weakref.ref[Server]]]] = []
_numbers: Final = itertools.count()


def note(server: Server) -> None:
    """This process has this server."""
    _servers[:] = [(number, each) for number, each in _servers if each() is not None]
    _servers.append((next(_numbers), weakref.ref(server)))


def follow(but: Container[int] = ()) -> tuple[socket.socket, int] | None:
    """A socket that is at its end when the newest server of this process drains, and the number of that server.

    Servers whose number is in `but` are left out. None: there is no other. Until `leave` is called, the server waits,
    and takes the requests of its sessions, but no longer than the graceful time-out. Raises OSError.
    """
    living = ((number, each()) for number, each in reversed(_servers.copy()) if number not in but)
    number, server = next(((number, each) for number, each in living if each is not None), (0, None))
    if server is None:
        return None
    ours, theirs = socket.socketpair()
    with theirs:
        forks.keep_from_children(ours)
        server.add_follower(theirs.fileno())
    return ours, number


def leave(follower: socket.socket) -> None:
    """Closes such a socket: the server need not wait any longer."""
    # Closing it does not suffice: a thread may have forked a child before `follow` kept it from children.
    with contextlib.suppress(OSError):
        follower.shutdown(socket.SHUT_RDWR)
    follower.close()
