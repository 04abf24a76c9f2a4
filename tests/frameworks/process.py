"""Foreign servers beside Tailrace, as real processes with a configuration of their own in a directory of their own."""

import csv
import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.addresses import Address, free_address
from harness.fronts import nginx_with
from harness.server import Server, await_listening
from harness.tools import need_tool

DEADLINE = 20.0


def await_that(condition: Callable[[], bool]) -> None:
    """Waits until something becomes true that another process does on its own account; fails when it never does."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"did not become true: {inspect.getsource(condition).strip()}")
        time.sleep(0.01)


def both(path: str, application: str = "fw_delivery:app", **options: object) -> Server:
    """A server that listens on the UNIX socket `path`, and then on TCP to tell that it does."""
    address = free_address()
    return Server(application, "--bind", f"unix:{path}", "--bind", address.bind, address=address, **options)


def connections(server, path):
    """How many clients the kernel lists as connected to the server over TCP, or over its UNIX socket `path`."""
    if path:
        rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        return sum(len(row) == 8 and row[7] == path and row[5] == "03" for row in rows)
    port = f":{server.address.port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)


def haproxy_rows(path):
    """HAProxy's own figures at its socket `path`, by backend and server; none while it does not listen there."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(DEADLINE)
        try:
            sock.connect(str(path))
        except OSError:
            return {}
        sock.sendall(b"show stat\n")
        text = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    rows = csv.DictReader(text.removeprefix("# ").splitlines())
    return {(row["pxname"], row["svname"]): row for row in rows}


class Process:
    """A command that listens on `address`; stopped with `stop_signal`, which it must obey with status 0.

    `files` are written into `self.directory` first; "{directory}" in their text and in the command becomes its path.
    """

    def __init__(
        self,
        *command: str,
        address: Address,
        files: dict[str, str] | None = None,
        cwd: Path | None = None,
        environment: dict[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        statuses: tuple[int, ...] = (0,),
    ) -> None:
        # A short path: UNIX sockets have room for 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="pst-"))
        self.address = address
        for name, text in (files or {}).items():
            (self.directory / name).write_text(text.replace("{directory}", str(self.directory)))
        self.command = [part.replace("{directory}", str(self.directory)) for part in command]
        self._stop_signal = stop_signal
        self._statuses = statuses
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")}
        with (self.directory / "output").open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=cwd or self.directory,
                env={**clean, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            await_listening(self.process, address, lambda: self.log, DEADLINE)
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def log(self) -> str:
        """All that the process has written so far, to its output or to files named *.log."""
        paths = [self.directory / "output", *sorted(self.directory.glob("*.log"))]
        return "".join(path.read_text(errors="replace") for path in paths)

    @property
    def url(self) -> str:
        """URL of the root."""
        return self.address.url

    def __enter__(self):
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                sys.stderr.write(f"--- log of {' '.join(self.command)}\n{self.log}")
                return
            self.process.send_signal(self._stop_signal)
            status = self.process.wait(DEADLINE)
            if status not in self._statuses:
                pytest.fail(f"{' '.join(self.command)} ended with status {status}:\n{self.log}")
        finally:
            self._kill()


def nginx(listen: Address, site: str) -> Process:
    """nginx with these `server` blocks, one of which listens there."""
    front = nginx_with(site)
    return Process(need_tool(front.executable), *front.arguments, address=listen, files=front.files)
