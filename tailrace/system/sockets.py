"""Listening sockets: opened for an address, inherited, or taken over from a predecessor; and closed.

Every failure is one `BindError` that names the address and the remedy. On Linux accepted connections inherit the TCP
options of their listener, so that no system call is needed for each.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace._tailrace import Certificates
from tailrace.errors import BindError
from tailrace.system import forks
from tailrace.system.addresses import Address, InheritedAddress, TcpAddress, UnixAddress
from tailrace.system.binds import BACKLOG, Bind

# How many bytes the kernel takes before it has sent them, tcp(7): enough for the fastest client between two writes.
_NOT_SENT: Final = 128 * 1024


class SocketFile:
    """The file of a UNIX socket that this process made."""

    def __init__(self, path: str) -> None:
        status = os.lstat(path)
        # Absolute, since the application may change the directory. The process, since a child that the application
        # forks must not remove the file when it ends.
        self.path, self._process = os.path.abspath(path), os.getpid()
        self._identity = (status.st_dev, status.st_ino)

    def remove(self) -> None:
        """Removes it, unless another server has put its own there."""
        with contextlib.suppress(OSError):
            status = os.lstat(self.path)
            if self._process == os.getpid() and (status.st_dev, status.st_ino) == self._identity:
                os.unlink(self.path)


def remove_file(address: str) -> None:
    """Removes the file of a UNIX socket that a predecessor made, and on which nobody listens any more."""
    if address.startswith("unix:") and not address.startswith("unix:@"):
        with contextlib.suppress(OSError):
            SocketFile(address.removeprefix("unix:")).remove()


@dataclass
class Listener:
    """A socket that listens. `close` also removes the file of a UNIX socket that we made.

    protocol, proxy: as in `Bind`. certificates: connections are encrypted with these. redirects: requests are
    redirected to https://, at the port `redirect` of the same host.
    """

    address: Address
    socket: socket.socket
    _file: SocketFile | None = None
    protocol: str = "http"
    proxy: str | None = None
    certificates: Certificates | None = None
    redirects: bool = False
    redirect: int | None = None

    @property
    def url(self) -> str:
        """What to open: a URL with the real port, or the address of a UNIX socket."""
        name = self.socket.getsockname()
        protocol, path = ("http", "/publish/") if self.publishes else (self.protocol, "")
        if self.socket.family == socket.AF_INET:
            return f"{protocol}://{'127.0.0.1' if name[0] == '0.0.0.0' else name[0]}:{name[1]}{path}"
        if self.socket.family == socket.AF_INET6:
            return f"{protocol}://[{'::1' if name[0] == '::' else name[0]}]:{name[1]}{path}"
        shown = os.fsdecode(name)
        file = f"@{shown[1:]}" if shown.startswith("\0") else shown
        return f"unix:{file}" if protocol == "http" else f"{protocol}+unix:{file}"

    @property
    def publishes(self) -> bool:
        """True when publications arrive there: it is no address of the application."""
        return self.protocol == "publish"

    @property
    def is_local(self) -> bool:
        """True when only this machine can reach it."""
        is_ip = self.socket.family in (socket.AF_INET, socket.AF_INET6)
        return not is_ip or ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback

    @property
    def everywhere(self) -> bool:
        """True when it listens on every address of the machine."""
        return self.socket.family in (socket.AF_INET, socket.AF_INET6) and self.socket.getsockname()[0] in (
            "0.0.0.0",
            "::",
        )

    @property
    def shown(self) -> str:
        """`url`, and what else somebody who connects must know."""
        everywhere = " and every other address of this machine" * self.everywhere
        redirected = "" if self.redirect is None else f", redirected to https:// at port {self.redirect}"
        behind = " behind a PROXY header" * (self.proxy is not None)
        return f"{self.url}{everywhere}{self._permissions}{behind}{redirected}"

    @property
    def _permissions(self) -> str:
        """The permissions of a UNIX socket that has a file."""
        name = self.socket.getsockname()
        if self.socket.family != socket.AF_UNIX or not isinstance(name, str) or not name:
            return ""
        try:
            return f" (mode {stat.S_IMODE(os.stat(name).st_mode):03o})"
        except OSError:
            return ""

    def hand_over(self) -> None:
        """Closes our descriptor once the core has a duplicate, so that the core's close ends the listening.

        The file of a UNIX socket stays until `close`.
        """
        if not isinstance(self.address, InheritedAddress):
            self.socket.close()

    @property
    def path(self) -> str | None:
        """The path of a UNIX socket's file, if this process is to remove it."""
        return self._file.path if self._file is not None else None

    def take_file(self) -> None:
        """This process removes the file of a UNIX socket from now on: its predecessor has ended."""
        if self._file is None and isinstance(self.address, UnixAddress) and not self.address.is_abstract:
            with contextlib.suppress(OSError):
                self._file = SocketFile(self.address.path)

    def leave_file(self) -> None:
        """The successor removes the file of a UNIX socket from now on."""
        self._file = None

    def close(self) -> None:
        """Closes the socket, and removes its file if that is ours. An inherited descriptor stays open."""
        if isinstance(self.address, InheritedAddress):
            self.socket.detach()
            return
        if self._file is not None:
            self._file.remove()
        self.socket.close()


def bind(address: Address, *, backlog: int = BACKLOG, mode: int | None = None) -> Listener:
    """Opens a listening socket. Raises BindError."""
    if isinstance(address, TcpAddress):
        return _bind_tcp(address, backlog)
    if isinstance(address, UnixAddress):
        return _bind_unix(address, backlog, mode)
    return _adopt(address)


@contextlib.contextmanager
def bound(
    binds: Sequence[Bind],
    *,
    kept: Callable[[str], int | None] = lambda address: None,
) -> Iterator[list[Listener]]:
    """All listeners; they are closed at the end, and when one of them cannot be opened.

    kept: gives the descriptor of the socket that a predecessor bound to an address, or None.
    """
    with contextlib.ExitStack() as stack:
        listeners: list[Listener] = []
        for wanted in binds:
            try:
                listener = _bound(wanted, listeners[-1:], kept)
            except BindError as error:
                raise BindError(str(error).replace("--bind", f"--{wanted.option}")) from None
            if listener is None:
                continue
            stack.callback(listener.close)
            listener.protocol, listener.proxy, listener.redirects = wanted.protocol, wanted.proxy, wanted.redirects
            listeners.append(listener)
        keep_from_children(listeners, inherited=False)
        yield listeners


def _bound(wanted: Bind, before: list[Listener], kept: Callable[[str], int | None]) -> Listener | None:
    """The listener of a bind; None: this machine does not have the address in this family.

    before: the listener of the bind before. Raises BindError.
    """
    address = wanted.address
    is_free_choice = False
    if wanted.is_second and isinstance(address, TcpAddress):
        if not _has(address.host):
            return None
        if is_free_choice := address.port == 0:
            address = TcpAddress(address.host, before[0].socket.getsockname()[1])
    descriptor = kept(str(address))
    if descriptor is not None and not isinstance(address, InheritedAddress):
        return take_over(address, descriptor, backlog=wanted.backlog, mode=wanted.mode)
    try:
        return bind(address, backlog=wanted.backlog, mode=wanted.mode)
    except BindError:
        # The kernel chose a port that is free in the other family.
        if is_free_choice:
            return None
        raise


def _has(host: str) -> bool:
    """Whether this machine has an IPv6 address."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def keep_from_children(listeners: Iterable[Listener], *, inherited: bool) -> None:
    """The sockets are closed in the children that the application forks.

    inherited: also those that another program opened. In an embedding program they belong to the program.
    """
    for listener in listeners:
        if inherited or not isinstance(listener.address, InheritedAddress):
            forks.keep_from_children(listener.socket)


def take_over(address: TcpAddress | UnixAddress, descriptor: int, *, backlog: int, mode: int | None = None) -> Listener:
    """A listener of the socket that a predecessor bound to `address`. The predecessor owns its file until `take_file`.

    Raises BindError.
    """
    taken = socket.socket(fileno=descriptor)
    if isinstance(address, UnixAddress) and not address.is_abstract and not os.path.exists(address.path):
        # The file was removed, and nobody can connect any more: a new socket is made.
        taken.close()
        return bind(address, backlog=backlog, mode=mode)
    try:
        if isinstance(address, TcpAddress):
            _set_tcp_options(taken)
        taken.listen(backlog)
    except OSError as error:
        taken.close()
        raise BindError(f"cannot take over {address}: {error.strerror}") from None
    return Listener(address, taken)


def _bind_tcp(address: TcpAddress, backlog: int) -> Listener:
    host = address.host or "0.0.0.0"
    # Python loads tables to encode other text, which take milliseconds.
    name = host.encode() if host.isascii() else host
    try:
        found = socket.getaddrinfo(name, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
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
            # So `--bind :80 --bind [::]:80` works, and IPv4 clients have no address such as ::ffff:10.0.0.1.
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
            f"port {address.port} is in use; `ss -ltnp 'sport = :{address.port}'` shows which process uses it; "
            "stop that process, or choose another port with --bind"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"port {address.port} is reserved for root; choose a port of 1024 or higher, or grant CAP_NET_BIND_SERVICE "
            "(systemd: AmbientCapabilities=CAP_NET_BIND_SERVICE)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address; `ip address` lists its addresses"
    if error.errno == errno.EAFNOSUPPORT:
        return "this machine has no IPv6; bind an IPv4 address"
    return error.strerror or str(error)


def _bind_unix(address: UnixAddress, backlog: int, mode: int | None) -> Listener:
    abstract = address.is_abstract
    if not abstract:
        _remove_stale(address)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    file = None
    try:
        opened.bind("\0" + address.path[1:] if abstract else address.path)
        if not abstract:
            file = SocketFile(address.path)
            if mode is not None:
                # Nobody can connect before listen(), so there is no moment with other permissions.
                os.chmod(address.path, mode)
        opened.listen(backlog)
    except OSError as error:
        Listener(address, opened, file).close()
        raise BindError(f"cannot listen on {address}: {_unix_remedy(error, address)}") from None
    return Listener(address, opened, file)


def _unix_remedy(error: OSError, address: UnixAddress) -> str:
    directory = os.path.dirname(address.path) or "."
    if error.errno == errno.EADDRINUSE:
        return "another server is listening there; stop it, or choose another path with --bind"
    if error.errno == errno.ENOENT:
        return f"the directory {directory} does not exist; create it (systemd: RuntimeDirectory=)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to create a file in {directory}; choose another directory, or change its owner"
    return error.strerror or str(error)


def _remove_stale(address: UnixAddress) -> None:
    """Removes the socket file that a killed server left. Raises BindError for another file, or when a server
    listens."""
    try:
        if not stat.S_ISSOCK(os.lstat(address.path).st_mode):
            raise BindError(
                f"cannot listen on {address}: that file exists and is not a socket; remove it, or choose another path"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # Not blocking: with a full backlog it fails at once with EAGAIN, which means that a server listens.
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
    # Otherwise the kernel holds megabytes for each slow client, beside the memory that our limits count.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOT_SENT)


def _adopt(address: InheritedAddress) -> Listener:
    try:
        adopted = socket.socket(fileno=address.descriptor)
    except OSError as error:
        what = "is not open" if error.errno == errno.EBADF else "is not a socket"
        remedy = "start Tailrace from a systemd socket unit or another parent that passes it"
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
