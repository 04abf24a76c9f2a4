"""What `--bind` says: where to listen, what arrives there, and the options of that one socket.

A bind is an address, or a URL whose scheme is the protocol, and may end with options: `uwsgi://127.0.0.1:9000`,
`http+unix:/run/app.sock?mode=660`, `127.0.0.1:8000?proxy=v2&backlog=4096`. A text that is none is a `ConfigError`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote

from tailrace.errors import ConfigError
from tailrace.system import addresses
from tailrace.system.addresses import Address, TcpAddress, UnixAddress

_URL: Final = re.compile(r"(?P<protocol>[A-Za-z][\w.-]*)(?:\+(?P<kind>\w+):|:(?=//))(?P<rest>.*)", re.DOTALL)

_PROTOCOLS: Final = ("http", "https", "uwsgi")
_PROXY: Final = ("v1", "v2", "any")
# Length of the accept queue, and its maximum.
BACKLOG: Final = 2048
MAX_BACKLOG: Final = 65535
_SCHEMES: Final = "write http://host:port, https://host:port, uwsgi://host:port, http+unix:/path or uwsgi+fd://3"


class Bind(NamedTuple):
    """One socket to listen on.

    protocol: "http", "https" or "uwsgi". proxy: which version of the PROXY header each connection begins with ("v1",
    "v2", "any"); None: no such header. mode: permission bits of a UNIX socket; None: by the umask. backlog: most
    connections that wait to be accepted.
    """

    address: Address
    protocol: str = "http"
    proxy: str | None = None
    mode: int | None = None
    backlog: int = BACKLOG
    # The other family of the name of the bind before: it has that bind's port, and is left out where the machine does
    # not have its address.
    is_second: bool = False
    # Requests are redirected to the first encrypted address.
    redirects: bool = False


def parse(text: str) -> list[Bind]:
    """The sockets of one `--bind`: two for `localhost`, which is an address in each family. Raises ConfigError."""
    text = text.strip()
    where, mark, options = text.partition("?")
    protocol, where = _split(text, where)
    address = addresses.parse(where)
    bind = Bind(address, protocol)
    if mark:
        bind = _options(text, options, bind)
    if not isinstance(address, TcpAddress) or address.host.lower() != "localhost":
        return [bind]
    return [
        bind._replace(address=TcpAddress("127.0.0.1", address.port)),
        bind._replace(address=TcpAddress("::1", address.port), is_second=True),
    ]


def parse_all(texts: Iterable[str]) -> list[Bind]:
    """The sockets of all `--bind`s, in their order. Raises ConfigError."""
    return [bind for text in texts for bind in parse(text)]


def are_local(texts: Iterable[str]) -> bool:
    """Whether only this machine can reach the addresses. False for a socket that somebody else has opened, and for what
    is no address."""
    try:
        return all(_is_local(bind.address) for bind in parse_all(texts))
    except ConfigError:
        return False


def _is_local(address: Address) -> bool:
    if not isinstance(address, TcpAddress):
        return isinstance(address, UnixAddress)
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def _split(text: str, where: str) -> tuple[str, str]:
    """The protocol, and the address as `addresses.parse` reads it."""
    url = _URL.fullmatch(where)
    if url is None or (url["kind"] is None and url["protocol"] in ("fd", "unix")):
        return "http", where
    protocol, kind, rest = url["protocol"].lower(), url["kind"], url["rest"]
    if protocol not in _PROTOCOLS or kind not in (None, "unix", "fd"):
        raise ConfigError(f"--bind {text!r}: {url['protocol']}{'+' * bool(kind)}{kind or ''} is unknown; {_SCHEMES}")
    if kind is not None:
        return protocol, f"{kind}:{rest}"
    rest = rest.removeprefix("//").removesuffix("/")
    if "/" in rest:
        raise ConfigError(
            f"--bind {text!r}: an address to listen on has no path; set the application's path with --root-path"
        )
    return protocol, rest


def _options(text: str, options: str, bind: Bind) -> Bind:
    """The bind with the options behind the question mark."""
    found = set()
    for option in options.split("&"):
        name, mark, value = (unquote(part) for part in option.partition("="))
        if name in found:
            raise ConfigError(f"--bind {text!r}: {name} is given twice; remove one")
        found.add(name)
        if not mark or name not in ("proxy", "mode", "backlog"):
            raise ConfigError(
                f"--bind {text!r}: {option!r} is not an option of an address; choose from proxy=v2, mode=660 and "
                "backlog=4096"
            )
        if name == "proxy":
            if value not in _PROXY:
                raise ConfigError(f"--bind {text!r}: proxy must be v1, v2 or any, the version of the PROXY protocol")
            bind = bind._replace(proxy=value)
        elif name == "mode":
            if not isinstance(bind.address, UnixAddress) or bind.address.is_abstract:
                raise ConfigError(f"--bind {text!r}: mode applies only to UNIX sockets with a file; remove it")
            if not re.fullmatch("(0o)?[0-7]{1,4}", value):
                raise ConfigError(f"--bind {text!r}: mode must be octal permission bits, as in mode=660")
            bind = bind._replace(mode=int(value.removeprefix("0o"), 8))
        else:
            if not re.fullmatch("[0-9]{1,6}", value) or not 1 <= int(value) <= MAX_BACKLOG:
                raise ConfigError(f"--bind {text!r}: backlog must be a whole number from 1 to {MAX_BACKLOG}")
            bind = bind._replace(backlog=int(value))
    return bind
