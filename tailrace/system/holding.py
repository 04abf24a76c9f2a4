"""The two sockets between a server's processes that concern held connections, both in the abstract namespace of UNIX
sockets: where workers pass connections to the holder, and where the holder makes requests of the application.

A server has one of each. Its workers inherit them, and so does `tailrace.publish` in them. Thread: the one that starts
a server.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tailrace.system import forks

# Where programs publish that belong to no server. It is no option.
PUBLISH_VARIABLE: Final = "TAILRACE_PUBLISH_URL"
# The queues: connections wait there while the holder, or a worker, is replaced.
_BACKLOG: Final = 4096
# How long the proof lasts that a request has come through this server (seconds). It never leaves the server.
_VALID: Final = 10 * 365 * 86400


class Sockets(NamedTuple):
    """The listening sockets of a server, and their addresses without the first byte. holder: workers pass connections
    there. application: the holder makes requests there."""

    holder: socket.socket
    application: socket.socket
    holder_address: bytes
    application_address: bytes

    def close(self) -> None:
        """Closes both."""
        self.holder.close()
        self.application.close()


# Those of the servers of this process, or of the server that it is a worker of.
_known: Final[list[Sockets]] = []
# Signs what proves to the application that a request has come through this server.
# Text, since pubcontrol sends it as a field and cannot do that with bytes.
KEY: Final = secrets.token_urlsafe(32).encode()


def known() -> list[Sockets]:
    """Those of the servers of this process, or of the server that it is a worker of."""
    return list(_known)


def listen(kept: tuple[int | None, int | None] = (None, None)) -> Sockets:
    """Opens the sockets of a server, which are known from now on. kept: the descriptors of those that a predecessor
    has. Raises OSError."""
    holder, application = _listener(kept[0], "holder"), _listener(kept[1], "application")
    forks.keep_from_children(holder, application)
    found = Sockets(holder, application, _name(holder), _name(application))
    _known.append(found)
    return found


def _listener(kept: int | None, purpose: str) -> socket.socket:
    if kept is not None:
        listener = socket.socket(fileno=kept)
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0tailrace-{purpose}-{os.getpid()}-{secrets.token_hex(8)}")
    listener.listen(_BACKLOG)
    return listener


def _name(listener: socket.socket) -> bytes:
    name = listener.getsockname()
    return (name if isinstance(name, bytes) else os.fsencode(name))[1:]


def forget(found: Sockets) -> None:
    """A server of this process has ended."""
    _known.remove(found)


@contextlib.contextmanager
def advertised(urls: Iterable[str]) -> Iterator[None]:
    """Inside the context, libraries for GRIP in the application publish at the first of these URLs, unless $GRIP_URL
    says where."""
    found = next((url for url in urls if url.startswith("http://")), None)
    if found is None or "GRIP_URL" in os.environ:
        yield
        return
    os.environ["GRIP_URL"] = f"{found}/?key={KEY.decode()}"
    try:
        yield
    finally:
        # A program may start another server, at another port.
        os.environ.pop("GRIP_URL", None)


def is_behind_another(urls: Iterable[str]) -> bool:
    """Whether $GRIP_URL is that of a proxy which holds connections in front of this server. urls: where this server
    accepts publications."""
    found = os.environ.get("GRIP_URL", "")
    return bool(found) and _place(found) not in map(_place, urls)


def _place(url: str) -> tuple[str | None, int | None]:
    """Host and port of a URL; the names of this machine are one."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None, None
    return "localhost" if host in ("127.0.0.1", "::1", "0.0.0.0", "::") else host, port


def proof() -> str:
    """The value of `Grip-Sig`: a JSON Web Token (RFC 7519), signed with KEY."""

    def encoded(raw: bytes) -> bytes:
        return base64.urlsafe_b64encode(raw).rstrip(b"=")

    header = {"typ": "JWT", "alg": "HS256"}
    claims = {"iss": "tailrace", "exp": int(time.time()) + _VALID}
    signed = b".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
    return (signed + b"." + encoded(hmac.digest(KEY, signed, hashlib.sha256))).decode()
