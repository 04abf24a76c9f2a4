"""Addresses to listen on, as `--bind` has them. A text that is no address is a `ConfigError`."""

from __future__ import annotations

import os
import re
import socket
from typing import Final, NamedTuple

from tailrace.errors import ConfigError

_UNIX_PATH_LIMIT: Final = 107  # sizeof(sun_path) without the final NUL, unix(7)


_HOST_PORT: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>[0-9]+)")


_LARGEST_DESCRIPTOR: Final = (1 << 31) - 1  # they are int in C


class TcpAddress(NamedTuple):
    """A host and a port; an empty host is every IPv4 address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(NamedTuple):
    """A path, or with a leading `@` a name in the abstract namespace of Linux."""

    path: str

    @property
    def is_abstract(self) -> bool:
        """True for a name that has no file."""
        return self.path.startswith("@")

    def __str__(self) -> str:
        return f"unix:{self.path}"


class InheritedAddress(NamedTuple):
    """A descriptor that a parent process opened."""

    descriptor: int

    def __str__(self) -> str:
        return f"fd://{self.descriptor}"


Address = TcpAddress | UnixAddress | InheritedAddress


def parse(text: str, option: str = "bind", port: int = 8000) -> Address:
    """Reads one `--bind`, or the value of another option. port: that an error proposes. Raises ConfigError."""
    text = text.strip()
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path or path == "@" or path.endswith("/"):
            raise ConfigError(f"--{option} {text!r}: write the path of a socket after unix:, as in unix:/run/app.sock")
        if len(os.fsencode(path)) > _UNIX_PATH_LIMIT:
            raise ConfigError(
                f"--{option} {text!r}: a UNIX socket's path has at most {_UNIX_PATH_LIMIT} bytes; choose a shorter one"
            )
        return UnixAddress(path)
    if text.startswith("fd://"):
        number = text.removeprefix("fd://")
        if not (number.isascii() and number.isdigit()) or _number(number) > _LARGEST_DESCRIPTOR:
            raise ConfigError(f"--{option} {text!r}: write the number of an open descriptor after fd://, as in fd://3")
        return InheritedAddress(int(number))
    if text.isascii() and text.isdigit():
        return TcpAddress("127.0.0.1", _port(text, text, option))
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        remedy = "write host:port, [::1]:port, unix:/path or fd://3"
        if "://" in text:
            remedy = f"omit the scheme, as in 127.0.0.1:{port}"
        elif text.count(":") > 1 and "[" not in text:
            remedy = f"put an IPv6 address in brackets, as in {_in_brackets(text, port)}"
        elif re.fullmatch(r"[\w.-]+", text):
            remedy = f"write {text}:{port}"
        raise ConfigError(f"--{option} {text!r}: not an address; {remedy}")
    return TcpAddress(found["v6"] or found["host"], _port(found["port"], text, option))


def _in_brackets(text: str, proposed: int) -> str:
    """What was most likely meant: an IPv6 address, or an IPv6 address followed by a port."""
    host, _, port = text.rpartition(":")
    try:
        socket.inet_pton(socket.AF_INET6, host)
    except OSError:
        return f"[{text}]:{proposed}"
    return f"[{host}]:{port}" if port.isdigit() and (len(port) > 3 or port in ("80", "443")) else f"[{text}]:{proposed}"


def _port(digits: str, text: str, option: str) -> int:
    if _number(digits) > 65535:
        raise ConfigError(f"--{option} {text!r}: a port is at most 65535")
    return int(digits)


def _number(digits: str) -> int:
    """The number; 2**64 for more than 20 digits, since int() refuses more than a few thousand."""
    return int(digits[-20:]) if not digits[:-20].strip("0") else 1 << 64
