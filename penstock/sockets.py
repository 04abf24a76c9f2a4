"""Listening sockets: from `--bind` to a socket that listens, and away again.

Every failure is one `BindError` that names the address and the remedy; an address that cannot be read is a
`ConfigError`. Accepted connections inherit the TCP options of their listener on Linux, which saves system calls for
each.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import BindError, ConfigError

_UNIX_PATH_LIMIT: Final = 107  # sizeof(sun_path) without the final NUL, unix(7)
# Bytes that a socket takes and has not sent yet, tcp(7); enough for the fastest client between two writes.
_NOT_SENT: Final = 128 * 1024
_HOST_PORT: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>\d+)")


@dataclass(frozen=True)
class TcpAddress:
    """A host and a port; an empty host is every IPv4 address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class UnixAddress:
    """A path, or with a leading `@` a name in the abstract namespace of Linux."""

    path: str

    @property
    def is_abstract(self) -> bool:
        """True for a name that has no file."""
        return self.path.startswith("@")

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True)
class InheritedAddress:
    """A descriptor that a parent process opened."""

    descriptor: int

    def __str__(self) -> str:
        return f"fd://{self.descriptor}"


Address = TcpAddress | UnixAddress | InheritedAddress


def parse(text: str) -> Address:
    """Reads one `--bind`. Raises ConfigError."""
    text = text.strip()
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path or path == "@" or path.endswith("/"):
            raise ConfigError(f"bind {text!r}: after unix: comes the path of a socket, as in unix:/run/app.sock")
        if len(os.fsencode(path)) > _UNIX_PATH_LIMIT:
            raise ConfigError(
                f"bind {text!r}: a UNIX socket's path has at most {_UNIX_PATH_LIMIT} bytes; choose a shorter one"
            )
        return UnixAddress(path)
    if text.startswith("fd://"):
        number = text.removeprefix("fd://")
        if not (number.isascii() and number.isdigit()):
            raise ConfigError(f"bind {text!r}: after fd:// comes the number of an open descriptor, as in fd://3")
        return InheritedAddress(int(number))
    if text.isascii() and text.isdigit():
        return TcpAddress("127.0.0.1", _port(text, text))
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        remedy = "write host:port, [::1]:port, unix:/path or fd://3"
        if "://" in text:
            remedy = "leave the scheme out, as in 127.0.0.1:8000"
        elif text.count(":") > 1 and "[" not in text:
            remedy = f"put an IPv6 address in brackets, as in [{text}]:8000"
        elif re.fullmatch(r"[\w.-]+", text):
            remedy = f"write {text}:8000"
        raise ConfigError(f"bind {text!r}: not an address; {remedy}")
    return TcpAddress(found["v6"] or found["host"], _port(found["port"], text))


def _port(digits: str, text: str) -> int:
    if int(digits) > 65535:
        raise ConfigError(f"bind {text!r}: a port is at most 65535")
    return int(digits)


class SocketFile:
    """The file of a UNIX socket that this process made."""

    def __init__(self, path: str) -> None:
        status = os.lstat(path)
        # Absolute, since the application may change the directory; the process, since a child that the application
        # forks must not take the file away when it ends.
        self.path, self._process = os.path.abspath(path), os.getpid()
        self._identity = (status.st_dev, status.st_ino)

    def remove(self) -> None:
        """Removes it, unless another server has put its own there."""
        with contextlib.suppress(OSError):
            status = os.lstat(self.path)
            if self._process == os.getpid() and (status.st_dev, status.st_ino) == self._identity:
                os.unlink(self.path)


def remove_file(address: str) -> None:
    """Removes the file of a UNIX socket that a predecessor made and nobody listens on any more."""
    if address.startswith("unix:") and not address.startswith("unix:@"):
        with contextlib.suppress(OSError):
            SocketFile(address.removeprefix("unix:")).remove()


@dataclass
class Listener:
    """A socket that listens. `close` also removes the file of a UNIX socket that we made."""

    address: Address
    socket: socket.socket
    _file: SocketFile | None = None

    @property
    def url(self) -> str:
        """What to open: a URL with the real port, or the address of a UNIX socket."""
        name = self.socket.getsockname()
        if self.socket.family == socket.AF_INET:
            return f"http://{'127.0.0.1' if name[0] == '0.0.0.0' else name[0]}:{name[1]}"
        if self.socket.family == socket.AF_INET6:
            return f"http://[{'::1' if name[0] == '::' else name[0]}]:{name[1]}"
        shown = os.fsdecode(name)
        return "unix:" + (f"@{shown[1:]}" if shown.startswith("\0") else shown)

    @property
    def everywhere(self) -> bool:
        """True when it listens on every address of the machine."""
        return self.socket.family in (socket.AF_INET, socket.AF_INET6) and self.socket.getsockname()[0] in (
            "0.0.0.0",
            "::",
        )

    def hand_over(self) -> None:
        """The core has a duplicate: ours is closed, so that the core's close ends the listening. The file of a UNIX
        socket stays until `close`."""
        if not isinstance(self.address, InheritedAddress):
            self.socket.close()

    @property
    def path(self) -> str | None:
        """The path of a UNIX socket's file that is ours."""
        return self._file.path if self._file is not None else None

    def take_file(self) -> None:
        """The file of a UNIX socket is ours from now on: the predecessor that made it has left it to us."""
        if self._file is None and isinstance(self.address, UnixAddress) and not self.address.is_abstract:
            with contextlib.suppress(OSError):
                self._file = SocketFile(self.address.path)

    def leave_file(self) -> None:
        """The file of a UNIX socket belongs to a successor from now on."""
        self._file = None

    def close(self) -> None:
        """Closes it; an inherited descriptor is left to whoever opened it."""
        if isinstance(self.address, InheritedAddress):
            self.socket.detach()
            return
        if self._file is not None:
            self._file.remove()
        self.socket.close()


def bind(address: Address, *, backlog: int = 2048, socket_mode: int | None = None) -> Listener:
    """Opens a listening socket. Raises BindError."""
    if isinstance(address, TcpAddress):
        return _bind_tcp(address, backlog)
    if isinstance(address, UnixAddress):
        return _bind_unix(address, backlog, socket_mode)
    return _adopt(address)


@contextlib.contextmanager
def bound(
    addresses: Sequence[Address],
    *,
    backlog: int,
    socket_mode: int | None,
    kept: Callable[[str], int | None] = lambda address: None,
) -> Iterator[list[Listener]]:
    """All listeners, closed at the end, also when the second of two cannot be opened.

    kept: the descriptor of the socket that a predecessor bound to an address, if it did.
    """
    with contextlib.ExitStack() as stack:
        listeners = []
        for address in addresses:
            descriptor = kept(str(address))
            listener = (
                take_over(address, descriptor, backlog=backlog, socket_mode=socket_mode)
                if descriptor is not None and not isinstance(address, InheritedAddress)
                else bind(address, backlog=backlog, socket_mode=socket_mode)
            )
            stack.callback(listener.close)
            listeners.append(listener)
        yield listeners


def take_over(address: TcpAddress | UnixAddress, descriptor: int, *, backlog: int, socket_mode: int | None) -> Listener:
    """A listener of the socket that a predecessor bound to `address`; its file is the predecessor's until `take_file`.
    Raises BindError."""
    taken = socket.socket(fileno=descriptor)
    if isinstance(address, UnixAddress) and not address.is_abstract and not os.path.exists(address.path):
        # Somebody has removed the file, and nobody can connect any more.
        taken.close()
        return bind(address, backlog=backlog, socket_mode=socket_mode)
    try:
        if isinstance(address, TcpAddress):
            _set_tcp_options(taken)
        taken.listen(backlog)
    except OSError as error:
        taken.close()
        raise BindError(f"cannot take over {address}: {error.strerror}") from None
    return Listener(address, taken)


def _bind_tcp(address: TcpAddress, backlog: int) -> Listener:
    try:
        found = socket.getaddrinfo(
            address.host or "0.0.0.0", address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise BindError(f"cannot listen on {address}: the host {address.host!r} has no address ({reason})") from None
    family, kind, protocol, _, where = found[0]
    opened = None
    try:
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_tcp_options(opened)
        if family == socket.AF_INET6:
            # So that `--bind :80 --bind [::]:80` works, and no client appears under a mapped address.
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(where)
        opened.listen(backlog)
    except OSError as error:
        if opened is not None:
            opened.close()
        raise BindError(f"cannot listen on {address}: {_tcp_remedy(error, address)}") from None
    return Listener(address, opened)


def _tcp_remedy(error: OSError, address: TcpAddress) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {address.port} is in use; `ss -ltnp 'sport = :{address.port}'` shows by whom; stop that process, "
            "or choose another port with --bind"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"port {address.port} is reserved for the administrator; choose one from 1024 up, or grant "
            "CAP_NET_BIND_SERVICE (systemd: AmbientCapabilities=CAP_NET_BIND_SERVICE)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address; `ip address` lists those it has"
    if error.errno == errno.EAFNOSUPPORT:
        return "this machine has no IPv6; bind an IPv4 address"
    return error.strerror or str(error)


def _bind_unix(address: UnixAddress, backlog: int, socket_mode: int | None) -> Listener:
    abstract = address.is_abstract
    if not abstract:
        _remove_stale(address)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    file = None
    try:
        opened.bind("\0" + address.path[1:] if abstract else address.path)
        if not abstract:
            file = SocketFile(address.path)
            if socket_mode is not None:
                # Nobody can connect before listen(), so there is no moment with other permissions.
                os.chmod(address.path, socket_mode)
        opened.listen(backlog)
    except OSError as error:
        Listener(address, opened, file).close()
        raise BindError(f"cannot listen on {address}: {_unix_remedy(error, address)}") from None
    return Listener(address, opened, file)


def _unix_remedy(error: OSError, address: UnixAddress) -> str:
    directory = os.path.dirname(address.path) or "."
    if error.errno == errno.EADDRINUSE:
        return "another server listens there; stop it, or choose another path with --bind"
    if error.errno == errno.ENOENT:
        return f"the directory {directory} does not exist; create it (systemd: RuntimeDirectory=)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to create a file in {directory}; choose another directory, or change its owner"
    return error.strerror or str(error)


def _remove_stale(address: UnixAddress) -> None:
    """Removes the socket file that a killed server left; one with a server behind it, or any other file, stays."""
    try:
        if not stat.S_ISSOCK(os.lstat(address.path).st_mode):
            raise BindError(
                f"cannot listen on {address}: that file exists and is not a socket; remove it, or choose another path"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # Not blocking: a full backlog counts as "somebody listens", at once.
            probe.setblocking(False)
            outcome = probe.connect_ex(address.path)
        if outcome == errno.ECONNREFUSED:
            os.unlink(address.path)
        elif outcome in (0, errno.EAGAIN):
            outcome = errno.EADDRINUSE
            raise OSError(outcome, os.strerror(outcome))
    except FileNotFoundError:
        return
    except OSError as error:
        raise BindError(f"cannot listen on {address}: {_unix_remedy(error, address)}") from None


def _set_tcp_options(listener: socket.socket) -> None:
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A thousand slow clients would else have the kernel hold megabytes for each, on top of what we bound.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOT_SENT)


def _adopt(address: InheritedAddress) -> Listener:
    try:
        adopted = socket.socket(fileno=address.descriptor)
    except OSError as error:
        what = "is not open" if error.errno == errno.EBADF else "is not a socket"
        remedy = "start Penstock from a systemd socket unit or another parent that passes it"
        raise BindError(f"cannot listen on {address}: descriptor {address.descriptor} {what}; {remedy}") from None
    listening = adopted.type == socket.SOCK_STREAM and adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listening:
        adopted.detach()
        raise BindError(
            f"cannot listen on {address}: it is not a listening stream socket; its parent must call listen() first"
        )
    if adopted.family in (socket.AF_INET, socket.AF_INET6):
        _set_tcp_options(adopted)
    os.set_inheritable(address.descriptor, False)
    return Listener(address, adopted)
