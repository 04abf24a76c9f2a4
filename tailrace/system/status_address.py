"""Addresses of `--status` and `--haproxy-agent`."""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.errors import ConfigError
from tailrace.system import addresses
from tailrace.system.addresses import InheritedAddress, TcpAddress, UnixAddress

_ENCRYPTED: Final = "https://"
# That errors propose: the port of `--bind` is taken.
_PORTS: Final = {"status": 9000, "haproxy-agent": 9001}


class StatusAddress(NamedTuple):
    """is_encrypted: clients speak TLS, to a TCP address."""

    address: TcpAddress | UnixAddress
    is_encrypted: bool = False

    def __str__(self) -> str:
        return f"{_ENCRYPTED * self.is_encrypted}{self.address}"


def parse(text: str, option: str) -> StatusAddress:
    """The address in the value of `--status` or `--haproxy-agent`: `host:port`, `unix:/path` or, of `--status`,
    `https://host:port`. Raises ConfigError."""
    text = text.strip()
    is_encrypted = text.lower().startswith(_ENCRYPTED)
    if is_encrypted and option == "haproxy-agent":
        raise ConfigError(f"--{option} {text!r}: HAProxy asks its agents in plain text; write host:port, or unix:/path")
    where = text[len(_ENCRYPTED) :].removesuffix("/") if is_encrypted else text
    address = addresses.parse(where, option, _PORTS[option])
    if isinstance(address, InheritedAddress) or (is_encrypted and isinstance(address, UnixAddress)):
        choices = "host:port, https://host:port, or unix:/path" if option == "status" else "host:port, or unix:/path"
        raise ConfigError(f"--{option} {text!r}: write {choices}")
    return StatusAddress(address, is_encrypted)
