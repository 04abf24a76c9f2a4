"""Certificates for tests, and the same tests over TLS: TAILRACE_TEST_TLS=1 python -m pytest tests/protocol tests/wsgi

Servers then listen on `https://`, and the clients of `wire` and of `addresses` encrypt. A connection that ends without
a `close_notify` counts as one that was reset.
"""

import atexit
import functools
import os
import select
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

TLS = bool(os.environ.get("TAILRACE_TEST_TLS"))
SCHEME = "https" if TLS else "http"


@dataclass(frozen=True)
class Authority:
    """An authority, and a certificate that it has signed for this machine.

    root: its own certificate. chain, key: of a server. All are paths of PEM files in `directory`.
    """

    made: trustme.CA
    directory: Path

    @property
    def root(self) -> Path:
        """The certificate to trust."""
        return self.directory / "root.pem"

    @property
    def chain(self) -> Path:
        """The chain of a server on this machine."""
        return self.directory / "chain.pem"

    @property
    def key(self) -> Path:
        """Its key."""
        return self.directory / "key.pem"

    def write(self, issued: trustme.LeafCert, name: str = "") -> None:
        """Writes a chain and its key, in place of those of that name: both files are replaced at once."""
        for path, content in (
            (self.directory / f"{name}chain.pem", b"".join(each.bytes() for each in issued.cert_chain_pems)),
            (self.directory / f"{name}key.pem", issued.private_key_pem.bytes()),
        ):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            new.rename(path)

    def client(self, *, tls: str = "") -> ssl.SSLContext:
        """What a client needs that trusts the authority. tls: the only version."""
        context = ssl.create_default_context(cafile=str(self.root))
        if tls:
            context.minimum_version = context.maximum_version = ssl.TLSVersion[f"TLSv{tls.replace('.', '_')}"]
        return context


def authority_in(directory: Path) -> Authority:
    """An authority whose files are in this directory."""
    made = Authority(trustme.CA(), directory)
    made.made.cert_pem.write_to_path(str(made.root))
    made.write(made.made.issue_cert("localhost", "127.0.0.1", "::1", "test"))
    return made


@functools.cache
def authority() -> Authority:
    """That of this process."""
    directory = Path(tempfile.mkdtemp(prefix="tailrace-tls-"))
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(directory, ignore_errors=True))
    return authority_in(directory)


class Encrypted(ssl.SSLSocket):
    """One that still decrypts after its direction has ended, and with which one thread may send while another one
    receives: OpenSSL permits that for no connection."""

    def _taking_turns(self, action: Callable[[], Any]) -> Any:
        timeout = self.__dict__.get("timeout_set")
        lock: threading.Lock = self.__dict__.setdefault("turns", threading.Lock())
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with lock:
                socket.socket.settimeout(self, 0)
                try:
                    return action()
                except ssl.SSLWantReadError:
                    wants = select.POLLIN
                except ssl.SSLWantWriteError:
                    wants = select.POLLOUT
                finally:
                    socket.socket.settimeout(self, timeout)
            if timeout == 0:
                raise BlockingIOError
            poll = select.poll()
            poll.register(self, wants)
            left = None if end is None else max(0.0, end - time.monotonic())
            # Not for long: what this thread waits for may come with what another one reads.
            poll.poll(20 if left is None else min(20.0, left * 1000))
            if left == 0:
                raise TimeoutError("timed out")

    def settimeout(self, value: float | None) -> None:
        """As of any socket."""
        # Each action sets another one for itself.
        self.__dict__["timeout_set"] = value
        super().settimeout(value)

    def setblocking(self, flag: bool) -> None:
        """As of any socket."""
        self.settimeout(None if flag else 0.0)

    def recv(self, size: int = 1024, flags: int = 0) -> bytes:
        """As of any socket."""
        return self._taking_turns(lambda: super(Encrypted, self).recv(size, flags))

    def send(self, data: Any, flags: int = 0) -> int:
        """As of any socket."""
        return self._taking_turns(lambda: super(Encrypted, self).send(data, flags))

    def sendall(self, data: Any, flags: int = 0) -> None:
        """As of any socket."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view) :]

    def shutdown(self, how: int) -> None:
        """As of a socket without encryption: the server sees the end of the stream."""
        socket.socket.shutdown(self, how)


@functools.cache
def context() -> ssl.SSLContext:
    """What the clients of all tests use: the name in the request is not that of the server."""
    made = authority().client()
    made.check_hostname = False
    made.sslsocket_class = Encrypted
    return made
