"""What `tailrace threads`, `top` and `doctor --live` ask: the address of `--status`, or a process by its number.

Any process may answer at an address, so the length of an answer and the time for it are limited. Answers are returned
unescaped: code that prints them calls `printable_document` first. Errors are `AskError`s with one line that names the
remedy.

Thread: any.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace import __version__
from tailrace.errors import TailraceError
from tailrace.printable import printable
from tailrace.stacks.process import BUDGET, of_process
from tailrace.system import status_address
from tailrace.system.addresses import TcpAddress

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Time limit for an answer, from the first attempt to connect to the last byte (seconds): more than the status process
# allows for reading all stacks.
TIMEOUT: Final = BUDGET + 5.0
# Maximum length of an answer (bytes): far more than the stacks of thousands of threads.
LONGEST: Final = 64 << 20
# Maximum length of a refusal's text in an error (characters).
_MAX_SAID: Final = 200
WHICH: Final = (
    "no server address: name one, as in `--status 127.0.0.1:9000`; the server must be started with the same option, as "
    "in `tailrace app:app --status 127.0.0.1:9000`"
)
_TITLE: Final = re.compile(r"tailrace: worker (\d+) |tailrace-w(\d+)$")


class AskError(TailraceError):
    """The server cannot be asked."""

    exit_status = 1


class Asked:
    """The status address of a server. Raises ConfigError for a text that is no address."""

    def __init__(self, text: str) -> None:
        self.address = status_address.parse(text, "status")

    def status(self) -> dict[str, Any]:
        """`/status.json`. Raises AskError."""
        return self._get("/status.json")

    def stacks(self) -> list[dict[str, Any]]:
        """The workers of `/stacks`. Raises AskError."""
        workers: list[dict[str, Any]] = self._get("/stacks")["workers"]
        return workers

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """A context for code that reads a document. Raises AskError if the document has an unexpected form.

        The JSON parser accepts integers that overflow a float (OverflowError), and values that nest too deeply for
        code that visits them (RecursionError).
        """
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise AskError(
                f"{self.address} is not the --status address of Tailrace {__version__}: its document has an unexpected "
                f"form ({type(error).__name__})"
            ) from None

    def _get(self, target: str) -> dict[str, Any]:
        remedy = f"was the server started with `--status {self.address}`?"
        try:
            status, body = self._exchange(target)
        except TimeoutError:
            raise AskError(f"no complete response from {self.address} within {TIMEOUT:g} s; {remedy}") from None
        except ssl.SSLCertVerificationError as error:
            raise AskError(
                f"the certificate of {self.address} is not trusted: {_short(error.verify_message)}; name the host as "
                "the certificate does, and set SSL_CERT_FILE to the authority that signed it, or to the certificate "
                "itself if it is self-signed"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AskError(f"no response from {self.address}: {_short(reason)}; {remedy}") from None
        if body is None:
            raise AskError(
                f"the response from {self.address} to {target} is longer than {LONGEST >> 20} MiB, so this is not a "
                f"--status address; {remedy}"
            )
        if status != 200:
            said = _short(body.decode(errors="replace").strip().partition("\n")[0])
            # The first line of an HTML page says nothing.
            reason = f": {said}" if said and not said.startswith("<") else ""
            raise AskError(f"{self.address} answers {target} with {status}{reason}; {remedy}")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or "workers" not in found:
            raise AskError(f"{self.address} is not the --status address of Tailrace: {target} is another document")
        return found

    def _exchange(self, target: str) -> tuple[int, bytes | None]:
        """The status and the body; None: the body is longer than LONGEST."""
        deadline = time.monotonic() + TIMEOUT
        request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
        with self._connect(deadline) as connected:
            connected.settimeout(_left(deadline))
            connected.sendall(request.encode())
            answer = _Answer(connected, deadline)
            with contextlib.closing(http.client.HTTPResponse(answer)) as response:  # type: ignore[arg-type]
                try:
                    response.begin()
                    # Limited, since http.client reserves memory for the length that the head announces.
                    body = response.read(LONGEST)
                except _TooLong:
                    return 0, None
                if response.length:
                    raise http.client.IncompleteRead(body, response.length)
                return response.status, body

    def _connect(self, deadline: float) -> socket.socket:
        """A connection to the first address that accepts one, after the handshake. Raises OSError."""
        address = self.address.address
        if not isinstance(address, TcpAddress):
            path = address.path
            return _connected(socket.AF_UNIX, "\0" + path[1:] if address.is_abstract else path, deadline)
        host = address.host or "127.0.0.1"
        plain = _connected_to(host, address.port, deadline)
        if not self.address.is_encrypted:
            return plain
        with plain:
            plain.settimeout(_left(deadline))
            return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _connected_to(host: str, port: int, deadline: float) -> socket.socket:
    """A connection to the first address of the host that accepts one. Raises OSError."""
    # The resolver has only its own limits, resolv.conf(5).
    *others, last = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, at in others:
        with contextlib.suppress(OSError):
            return _connected(family, at, deadline)
    return _connected(last[0], last[4], deadline)


def _connected(family: int, at: Any, deadline: float) -> socket.socket:
    """A connection to one address. Raises OSError, and TimeoutError at the deadline."""
    connected = socket.socket(family)
    try:
        connected.settimeout(_left(deadline))
        connected.connect(at)
    except OSError:
        connected.close()
        raise
    return connected


def _left(deadline: float) -> float:
    """The seconds until the deadline. Raises TimeoutError once there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _TooLong(Exception):
    """The other process has sent more than LONGEST."""


class _Answer(io.RawIOBase):
    """The bytes that arrive at a socket, up to LONGEST and until a deadline. Raises _TooLong and TimeoutError."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket, self._deadline, self._left = connected, deadline, LONGEST

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Called by http.client."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, into: WriteableBuffer) -> int:
        self._socket.settimeout(_left(self._deadline))
        number = self._socket.recv_into(into)
        self._left -= number
        if self._left < 0:
            raise _TooLong
        return number


def _short(text: str) -> str:
    """The beginning of a text from another process, for an error."""
    return printable(text[:_MAX_SAID]) + "..." * (len(text) > _MAX_SAID)


def process(pid: int) -> list[dict[str, Any]]:
    """The workers of the master with this number, or else that process. Raises AskError."""
    if not Path(f"/proc/{pid}").exists():
        raise AskError(f"process {pid} does not exist")
    workers = {child: number for child in _children(pid) if (number := _worker(child)) is not None}
    return [of_process(number, child) for child, number in (workers or {pid: _worker(pid) or 0}).items()]


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
