"""Addresses of this machine for one test: free TCP ports, paths for UNIX sockets, and the way to connect to either."""

from __future__ import annotations

import functools
import random
import socket
from dataclasses import dataclass

# Below the ephemeral range, so that no outgoing connection of another test can take the port meanwhile.
PORTS = range(12000, 32000)
BLOCK = 1000


@dataclass(frozen=True)
class Address:
    """Where a server listens: `host` and `port`, or `path` of a UNIX socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def bind(self) -> str:
        """The value of `--bind`."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the root; of a UNIX socket, a stand-in for clients that get the path separately."""
        return "http://localhost" if self.path else f"http://{self.bind}"

    def connect(self, deadline: float = 10.0) -> socket.socket:
        """A connected socket whose every operation must make progress within `deadline` seconds."""
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


@functools.cache
def _own_ports() -> tuple[range, socket.socket]:
    """Ports of which no other process of tests takes any, and what says so: a name that ends with this process."""
    for first in random.sample(PORTS[::BLOCK], len(PORTS) // BLOCK):
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0tailrace-tests-{first}")
        except OSError:
            name.close()
            continue
        return range(first, first + BLOCK), name
    raise RuntimeError(f"all ports are taken by other tests: {PORTS}")


def free_address(host: str = "127.0.0.1") -> Address:
    """A TCP address on which nothing listens at the moment, and for which no other process of tests looks."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.sample(_own_ports()[0], 200):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return Address(host=host, port=port)
    raise RuntimeError(f"no free port on {host}")


def address_of(url: str) -> Address:
    """The address in `http://host:port`."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    return Address(host=host.strip("[]"), port=int(port))
