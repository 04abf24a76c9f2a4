"""Addresses of this machine for one test: free TCP ports, paths for UNIX sockets, and the way to connect to either.

Where a port must be known before something listens on it, `free_address` reserves one: it keeps a socket that is bound
to it and does not listen. The kernel then gives the port to nobody else, neither to another `bind` to port 0 nor to a
client that connects, whatever its range of ports. A server that names the port may listen on it, also again after it
has ended, since both sockets have set SO_REUSEADDR. A port that is chosen and not kept is only free by luck, inside
the kernel's range and outside of it. Programs that need no port in advance are given port 0.
"""

import socket
from collections import deque
from dataclasses import dataclass

# How many ports a process has reserved at most: far more than a test has servers, which keep the port by themselves
# once they listen, and far fewer than it may have open files.
MAX_RESERVATIONS = 100
_reservations: deque[socket.socket] = deque()


@dataclass(frozen=True)
class Address:
    """Where a server listens: `host` and `port`, or `path` of a UNIX socket. is_encrypted: for HTTPS."""

    host: str = ""
    port: int = 0
    path: str = ""
    is_encrypted: bool = False

    @property
    def bind(self) -> str:
        """The value of `--bind`."""
        if self.path:
            return f"{'https+' * self.is_encrypted}unix:{self.path}"
        return ("https://" * self.is_encrypted) + self.place

    @property
    def place(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the root; of a UNIX socket, a stand-in for clients that get the path separately."""
        scheme = "https" if self.is_encrypted else "http"
        return f"{scheme}://localhost" if self.path else f"{scheme}://{self.place}"

    def connect(self, deadline: float = 10.0) -> socket.socket:
        """A connected socket whose every operation must make progress within `deadline` seconds; after the handshake if
        it is encrypted."""
        plain = self.connect_plain(deadline)
        if not self.is_encrypted:
            return plain
        from .encrypted import context

        try:
            return context().wrap_socket(plain, server_hostname="test", suppress_ragged_eofs=False)
        except BaseException:
            plain.close()
            raise

    def connect_plain(self, deadline: float = 10.0) -> socket.socket:
        """Connects without encryption."""
        if self.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(deadline)
            try:
                sock.connect(self.path)
            except OSError:
                sock.close()
                raise
            return sock
        sock = socket.create_connection((self.host, self.port), timeout=deadline)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


def free_address(host: str = "127.0.0.1") -> Address:
    """A TCP address on which nothing listens yet, reserved as the top of this file says. Raises OSError where this
    machine has no such host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reservation = socket.socket(family)
    # Both, for servers that set only one of them.
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind((host, 0))
    if len(_reservations) == MAX_RESERVATIONS:
        _reservations.popleft().close()
    _reservations.append(reservation)
    return Address(host=host, port=reservation.getsockname()[1])


def address_of(url: str) -> Address:
    """The address in `http://host:port` or `https://host:port`."""
    scheme, _, where = url.partition("://")
    host, _, port = where.rstrip("/").rpartition(":")
    return Address(host=host.strip("[]"), port=int(port), is_encrypted=scheme == "https")
