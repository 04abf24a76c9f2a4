"""The address of `--publish-bus`: which service, and which channel of it."""

from __future__ import annotations

import importlib.util
import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

# The package that each service needs, and the extra of Tailrace that has it.
_PACKAGES: Final = {"redis": "redis", "rediss": "redis", "postgresql": "psycopg", "postgres": "psycopg"}
# Other names of these, as redis does not know them.
_ALIASES: Final = {"valkey": "redis", "valkeys": "rediss"}
_EXTRAS: Final = {"redis": "redis", "psycopg": "postgresql"}
_CHANNEL: Final = "channel"
_DEFAULT: Final = "tailrace"
# What PostgreSQL keeps of a name.
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,63}")
_INVALID: Final = "not a valid URL; in a password, write / @ : % as %2F %40 %3A %25"
# In a URL, `%` begins two hexadecimal digits.
_STRAY: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Address(NamedTuple):
    """url: for the library of the service, with its password. shown: for people, without. channel: of this group of
    servers. package: the library."""

    url: str
    shown: str
    channel: str
    package: str


def parse(text: str) -> Address:
    """Raises ValueError with what is wrong, without the password."""
    scheme, mark, rest = text.partition("://")
    package = _PACKAGES.get(_ALIASES.get(scheme, scheme))
    if package is None or not mark:
        raise ValueError("must begin with redis://, rediss:// or postgresql://")
    try:
        parts = urlsplit(f"{_ALIASES.get(scheme, scheme)}://{rest}")
        # PostgreSQL may have several hosts, each with its port.
        place = parts.netloc.rpartition("@")[2] if package == "psycopg" else _place(parts.hostname, parts.port)
    except ValueError:
        raise ValueError(_INVALID) from None
    # Whoever reads the log must not see a part of the password.
    if "@" in parts.path or _STRAY.search(text):
        raise ValueError(_INVALID)
    if not place and package == "redis":
        raise ValueError("the URL has no host; write, for example, redis://localhost:6379")
    query = parse_qsl(parts.query, keep_blank_values=True)
    channel = dict(query).get(_CHANNEL, _DEFAULT)
    if not _NAME.fullmatch(channel):
        raise ValueError("channel= must have 1 to 63 characters: letters, digits and _.:-")
    # libpq does not read `+` as a space.
    rest = urlencode([(name, value) for name, value in query if name != _CHANNEL], quote_via=quote)
    # urlunsplit would make `postgresql:///name` another URL.
    url = f"{parts.scheme}://{parts.netloc}{parts.path}" + f"?{rest}" * bool(rest)
    return Address(url, f"{scheme}://{place}{parts.path} (channel {channel})", channel, package)


def _place(host: str | None, port: int | None) -> str:
    host = host or ""
    return (f"[{host}]" if ":" in host else host) + f":{port}" * (port is not None)


def missing(address: Address) -> str | None:
    """What to install; None: nothing."""
    if importlib.util.find_spec(address.package) is not None:
        return None
    return (
        f"needs the package {address.package}, which is not installed; "
        f"`pip install 'tailrace[{_EXTRAS[address.package]}]'`"
    )
