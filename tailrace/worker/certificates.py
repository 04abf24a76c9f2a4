"""The certificates of `https://` addresses: read before a server binds, and again when their files change.

A process reads them once. Those that it forks have what could be read last, and follow the files themselves; the
master, or the only process, logs what becomes of them.

Thread: any.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tailrace._tailrace import Certificates, self_signed
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.system import status_address
from tailrace.system.binds import Bind
from tailrace.system.sockets import Listener

# How often the files are looked at (seconds).
INTERVAL: Final = 5.0
# A certificate that expires sooner is logged as a warning (seconds).
_SOON: Final = 14 * 86400
_DAY: Final = 86400


def load(settings: ServerSettings, binds: Iterable[Bind], *, has_status: bool) -> Certificates | None:
    """The certificates of the `https://` addresses; None: there is none. has_status: that of `--status` may be one.
    Raises ConfigError."""
    encrypted = [f"--bind https://{bind.address}" for bind in binds if bind.protocol == "https"]
    if not encrypted and settings.redirect_http:
        raise ConfigError(
            "--redirect-http needs an https:// address to redirect to; add one, as in --bind https://:443"
        )
    if has_status and settings.status is not None and status_address.parse(settings.status, "status").is_encrypted:
        encrypted.append(f"--status {settings.status}")
    if settings.keyfile and not settings.certfile:
        raise ConfigError("--keyfile is set without --certfile; set --certfile, or remove --keyfile")
    if not encrypted:
        if settings.certfile or settings.self_signed:
            log.logger.warning(
                "no address is encrypted, so certificates have no effect; bind an https:// address, as in --bind "
                "https://:443"
            )
        return None
    try:
        made = Certificates(
            _files(settings, encrypted[0]),
            os.urandom(32),
            password=_absolute(settings.keyfile_password_file),
            only_1_3=settings.tls_min == "1.3",
            client_ca=_absolute(settings.client_ca),
            client_is_required=settings.client_cert == "required",
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    announce(made.facts())
    return made


def _absolute(path: str | None) -> str | None:
    # The application may change the directory.
    return None if path is None else os.path.abspath(path)


def _files(settings: ServerSettings, encrypted: str) -> list[tuple[str, str | None]]:
    chains, keys = settings.certfile, settings.keyfile
    if settings.self_signed:
        if chains:
            raise ConfigError("--self-signed makes a certificate, and --certfile names one; remove one of them")
        return [(_self_signed(), None)]
    if not chains:
        raise ConfigError(
            f"{encrypted} needs a certificate; add --certfile and --keyfile, or --self-signed for development"
        )
    if keys and len(keys) != len(chains):
        raise ConfigError("there must be one --keyfile for each --certfile, in the same order, or none")
    return [(os.path.abspath(chain), _absolute(keys[at] if keys else None)) for at, chain in enumerate(chains)]


def _self_signed() -> str:
    """The file with a certificate for development and its key. It is kept, so that a browser that was told to trust it
    does so again."""
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tailrace")
    path = os.path.join(folder, "self-signed.pem")
    if os.path.exists(path):
        return path
    names = dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname()])
    certificate, key = self_signed(list(names))
    new = f"{path}.{os.getpid()}"
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(certificate + key)
        os.replace(new, path)
    except OSError as error:
        raise ConfigError(f"--self-signed: cannot write {path}: {error.strerror}; set XDG_CACHE_HOME") from None
    return path


def announce(facts: Iterable[tuple[str, list[str], float, float]]) -> None:
    """Logs which certificates are served, and when they expire. facts: as `Certificates.facts` returns them."""
    now = time.time()
    for file, names, begins, expires in facts:
        shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
        if expires <= now:
            log.logger.warning("the certificate %s (%s) has expired, and clients will refuse it; renew it", file, shown)
        elif begins > now:
            log.logger.warning("the certificate %s (%s) is not valid yet; check the clock", file, shown)
        else:
            days = log.counted(int((expires - now) / _DAY), "day")
            level = log.logger.warning if expires - now < _SOON else log.logger.info
            level("certificate %s (%s) expires in %s", file, shown, days)


def encrypt(listeners: Sequence[Listener], certificates: Certificates | None) -> None:
    """Sets the certificates of the encrypted listeners, and the port of the first for those that redirect."""
    ports = []
    for listener in listeners:
        if listener.protocol == "https":
            listener.certificates = certificates
            is_unix = listener.socket.family == socket.AF_UNIX
            ports.append(443 if is_unix else listener.socket.getsockname()[1])
    for listener in listeners:
        if listener.redirects:
            listener.redirect = ports[0]


def of(listeners: Iterable[Listener]) -> Certificates | None:
    """Those of the encrypted listeners."""
    return next((each.certificates for each in listeners if each.certificates is not None), None)


def expiries(certificates: Certificates | None) -> list[tuple[str, float]]:
    """The file of each certificate, and when it expires (Unix time)."""
    return [] if certificates is None else [(file, expires) for file, _, _, expires in certificates.facts()]


def refresh(certificates: Certificates, *, logs: bool) -> None:
    """Reads the files again that have changed. For one that cannot be used, the certificate before stays."""
    before = certificates.facts()
    is_renewed, faults = certificates.refresh()
    if not logs:
        return
    for fault in faults:
        log.logger.error("%s; the certificate before is kept", fault)
    if is_renewed:
        log.logger.info("certificates have changed and are used from now on")
        announce(each for each in certificates.facts() if each not in before)


@contextlib.contextmanager
def followed(certificates: Certificates | None, *, logs: bool = True) -> Iterator[None]:
    """A context in which a thread follows the files. logs: and logs what becomes of them, which a process with a master
    leaves to it."""
    if certificates is None:
        yield
        return
    over = threading.Event()

    def follow() -> None:
        while not over.wait(INTERVAL):
            refresh(certificates, logs=logs)

    thread = threading.Thread(target=follow, name="tailrace-certificates", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
