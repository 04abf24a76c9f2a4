"""What `tailrace threads` and `tailrace top` ask: the address of `--status`, or a process by its number.

Errors are `AskError`s with one line that says the remedy. Thread: any.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from pathlib import Path
from typing import Any, Final

from tailrace.process import addresses
from tailrace.process.addresses import InheritedAddress, TcpAddress
from tailrace.process.errors import ConfigError, TailraceError
from tailrace.status import threads

# How long an answer may take (seconds): more than the status process gives the reading of all stacks.
TIMEOUT: Final = threads.BUDGET + 5.0
WHICH: Final = (
    "which server? Name the address of its --status, as in `--status 127.0.0.1:9000`; a server has one when it is "
    "started so: `tailrace app:app --status 127.0.0.1:9000`"
)
_TITLE: Final = re.compile(r"tailrace: worker (\d+) |tailrace-w(\d+)$")


class AskError(TailraceError):
    """The server cannot be asked."""

    exit_status = 1


class Asked:
    """The status address of a server. Raises ConfigError for a text that is no address."""

    def __init__(self, text: str) -> None:
        address = addresses.parse(text, "status")
        if isinstance(address, InheritedAddress):
            raise ConfigError(f"status {text!r}: write host:port, or unix:/path")
        self.address = address

    def status(self) -> dict[str, Any]:
        """`/status.json`. Raises AskError."""
        return self._get("/status.json")

    def stacks(self) -> list[dict[str, Any]]:
        """The workers of `/stacks`. Raises AskError."""
        workers: list[dict[str, Any]] = self._get("/stacks")["workers"]
        return workers

    def _get(self, target: str) -> dict[str, Any]:
        try:
            status, body = self._exchange(target)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AskError(
                f"no answer from {self.address}: {reason}; is the server started with `--status {self.address}`?"
            ) from None
        if status != 200:
            said = body.decode(errors="replace").strip().partition("\n")[0]
            raise AskError(f"{self.address} answers {target} with {status}: {said}")
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict) or "workers" not in found:
            raise AskError(f"{self.address} is not the --status address of Tailrace: {target} is another document")
        return found

    def _exchange(self, target: str) -> tuple[int, bytes]:
        with self._connect() as connected:
            connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT)
            connection.sock = connected
            connection.request("GET", target, headers={"Accept": "application/json", "Connection": "close"})
            response = connection.getresponse()
            return response.status, response.read()

    def _connect(self) -> socket.socket:
        if isinstance(self.address, TcpAddress):
            return socket.create_connection((self.address.host or "127.0.0.1", self.address.port), TIMEOUT)
        path = self.address.path
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(TIMEOUT)
            connected.connect("\0" + path[1:] if self.address.is_abstract else path)
        except OSError:
            connected.close()
            raise
        return connected


def process(pid: int) -> list[dict[str, Any]]:
    """The workers of the master with this number, or else that process. Raises AskError."""
    if not Path(f"/proc/{pid}").exists():
        raise AskError(f"there is no process {pid}")
    workers = {child: number for child in _children(pid) if (number := _worker(child)) is not None}
    return [threads.of_process(number, child) for child, number in (workers or {pid: _worker(pid) or 0}).items()]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, each.read_text().split())
        except OSError:
            continue
    return found


def _worker(pid: int) -> int | None:
    """The number of the worker, from its title or its name; None: it is none."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        found = _TITLE.match(title) or _TITLE.match(Path(f"/proc/{pid}/comm").read_text().strip())
    except OSError:
        return None
    return int(found[1] or found[2]) if found else None
