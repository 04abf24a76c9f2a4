"""What `--bind`, `--redirect-http` and `--publish-bind` say: where to listen, what arrives there, and the options of
that one socket.

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
# Ports that errors propose, by option.
_PORTS: Final = {"redirect-http": 80, "publish-bind": 5561}
_SCHEMES: Final = "write http://host:port, https://host:port, uwsgi://host:port, http+unix:/path or uwsgi+fd://3"


class Bind(NamedTuple):
    """One socket to listen on.

    protocol: "http", "https" or "uwsgi", or "publish" for requests that publish. proxy: which version of the PROXY
    header each connection begins with ("v1", "v2", "any"); None: no such header. mode: permission bits of a UNIX
    socket; None: by the umask. backlog: maximum number of connections that wait to be accepted.
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
    # The option whose value it is, without dashes.
    option: str = "bind"


def parse(text: str, option: str = "bind") -> list[Bind]:
    """The sockets of one value of an option: two for `localhost`, which is an address in each family. Raises
    ConfigError."""
    text = text.strip()
    where, mark, options = text.partition("?")
    named = f"--{option} {text!r}"
    protocol, where = _split(named, where)
    address = addresses.parse(where, option, _PORTS.get(option, 8000))
    bind = Bind(address, protocol, option=option)
    if mark:
        bind = _options(named, options, bind)
    if not isinstance(address, TcpAddress) or address.host.lower() != "localhost":
        return [bind]
    return [
        bind._replace(address=TcpAddress("127.0.0.1", address.port)),
        bind._replace(address=TcpAddress("::1", address.port), is_second=True),
    ]


def parse_all(texts: Iterable[str], option: str = "bind") -> list[Bind]:
    """The sockets of all values of an option, in their order. Raises ConfigError."""
    return [bind for text in texts for bind in parse(text, option)]


def parse_published(texts: Iterable[str]) -> list[Bind]:
    """The sockets of all `--publish-bind`s. Raises ConfigError."""
    found = []
    for text in texts:
        for bind in parse(text, "publish-bind"):
            if bind.protocol != "http" or bind.proxy is not None:
                what = "begin with a PROXY header" if bind.proxy is not None else f"arrive by {bind.protocol}"
                raise ConfigError(
                    f"--publish-bind {text!r}: publications cannot {what}; write {bind.address}, and let only those "
                    "who may publish reach it"
                )
            found.append(bind._replace(protocol="publish"))
    return found


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


def _split(named: str, where: str) -> tuple[str, str]:
    """The protocol, and the address as `addresses.parse` reads it. named: the option with its value."""
    url = _URL.fullmatch(where)
    if url is None or (url["kind"] is None and url["protocol"] in ("fd", "unix")):
        return "http", where
    protocol, kind, rest = url["protocol"].lower(), url["kind"], url["rest"]
    if protocol not in _PROTOCOLS or kind not in (None, "unix", "fd"):
        raise ConfigError(f"{named}: {url['protocol']}{'+' * bool(kind)}{kind or ''} is unknown; {_SCHEMES}")
    if kind is not None:
        return protocol, f"{kind}:{rest}"
    rest = rest.removeprefix("//").removesuffix("/")
    if "/" in rest:
        raise ConfigError(f"{named}: an address to listen on has no path; set the application's path with --root-path")
    return protocol, rest


def _options(named: str, options: str, bind: Bind) -> Bind:
    """The bind with the options behind the question mark."""
    found = set()
    for option in options.split("&"):
        name, mark, value = (unquote(part) for part in option.partition("="))
        if name in found:
            raise ConfigError(f"{named}: {name} is given twice; remove one")
        found.add(name)
        if not mark or name not in ("proxy", "mode", "backlog"):
            raise ConfigError(
                f"{named}: {option!r} is not an option of an address; choose from proxy=v2, mode=660 and backlog=4096"
            )
        if name == "proxy":
            if value not in _PROXY:
                raise ConfigError(f"{named}: proxy must be v1, v2 or any, the version of the PROXY protocol")
            bind = bind._replace(proxy=value)
        elif name == "mode":
            if not isinstance(bind.address, UnixAddress) or bind.address.is_abstract:
                raise ConfigError(f"{named}: mode applies only to UNIX sockets with a file; remove it")
            if not re.fullmatch("(0o)?[0-7]{1,4}", value):
                raise ConfigError(f"{named}: mode must be octal permission bits, as in mode=660")
            bind = bind._replace(mode=int(value.removeprefix("0o"), 8))
        else:
            if not re.fullmatch("[0-9]{1,6}", value) or not 1 <= int(value) <= MAX_BACKLOG:
                raise ConfigError(f"{named}: backlog must be a whole number from 1 to {MAX_BACKLOG}")
            bind = bind._replace(backlog=int(value))
    return bind
