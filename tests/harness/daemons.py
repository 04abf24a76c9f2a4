"""Log daemons: the sockets of syslog and of systemd's journal, and what arrives there."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
from pathlib import Path


class LogDaemon:
    """Receives datagrams at the path of a UNIX socket, or by UDP; a context that begins to read at once.

    `entries`: what has arrived, as text.
    """

    def __init__(self, path: Path | None = None, *, reads: bool = True) -> None:
        family = socket.AF_INET if path is None else socket.AF_UNIX
        self._path = path
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0) if path is None else str(path))
        # A thread in recv() is not woken by close().
        self._socket.settimeout(0.02)
        self._entries: list[bytes] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        if reads:
            self.begin()

    def begin(self) -> None:
        """Begins to read."""
        self._thread.start()

    @property
    def port(self) -> int:
        """The port, by UDP."""
        return int(self._socket.getsockname()[1])

    @property
    def entries(self) -> list[str]:
        """What has arrived so far."""
        return [entry.decode("utf-8", "replace") for entry in list(self._entries)]

    @property
    def fields(self) -> list[dict[str, str]]:
        """The entries in the protocol of the journal."""
        return [journal_entry(entry) for entry in list(self._entries)]

    def has(self, pattern: str) -> bool:
        """True when an entry matches."""
        return any(re.search(pattern, entry, re.DOTALL) for entry in self.entries)

    def _read(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                self._entries.append(self._socket.recv(1 << 20))

    def __enter__(self) -> LogDaemon:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()
        if self._path is not None:
            os.unlink(self._path)


def journal_entry(entry: bytes) -> dict[str, str]:
    """Reads an entry as systemd-journald does: `NAME=value` lines, or a name, a length of 8 bytes and a value."""
    fields: dict[str, str] = {}
    rest = entry
    while rest:
        line, _, after = rest.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack("<Q", after[:8])
            value, after = after[8 : 8 + length], after[8 + length :]
            assert after[:1] == b"\n", "a value ends with a line end"
            after = after[1:]
        assert re.fullmatch(rb"[A-Z][A-Z0-9_]{0,63}", name), name
        fields[name.decode()] = value.decode("utf-8", "replace")
        rest = after
    return fields
