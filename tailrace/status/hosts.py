"""Which Host fields the status process answers.

A web page of anybody can have its own name resolve to the address of the status process (DNS rebinding), and would then
read all that is answered there. Such a name is one that can be registered. So those are answered that cannot be: an IP
address (as Prometheus and the probes of Kubernetes ask), a name without a dot (localhost, a service of Docker Compose),
and names of private networks; and the name that `--status` has.

Over TLS every name is answered: browsers refuse one that the certificate does not have.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from tailrace.system.addresses import Address, TcpAddress

# Suffixes of names that nobody can register (RFC 6761, RFC 6762, RFC 8375, RFC 9476), and those of Kubernetes.
_PRIVATE: Final = (".localhost", ".local", ".internal", ".home.arpa", ".test", ".svc", ".lan")


def is_answered(host: str | None, bound: Address | None) -> bool:
    """Whether a request with this Host is answered. bound: the address of --status; None: it is not known."""
    if host is None or (bound is not None and not isinstance(bound, TcpAddress)):
        # A page makes a browser neither leave the field out nor ask a UNIX socket.
        return True
    name = _name(host)
    if "." not in name or name.endswith(_PRIVATE) or _is_address(name):
        return True
    return bound is not None and name == bound.host.lower().rstrip(".")


def refusal(host: str) -> str:
    """Why a request with this Host is not answered, in a line."""
    name = ascii(_name(host)[:200])[1:-1]
    return (
        f"{name} may be the name of a web page that tries to read this: use the IP address or localhost, or start the "
        f"server with --status {name}:PORT; a proxy may send `Host: localhost`\n"
    )


def _name(host: str) -> str:
    """The name without the port."""
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
