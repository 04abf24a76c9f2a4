"""A server as an operator has it: in a directory of its own, with a pid file that names the master of the moment, for
the master may become another process. And clients that ask without pause and check every byte."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from .addresses import Address, free_address
from .wire import Client, Response, get

DEADLINE = 60.0


class Operated:
    """`tailrace ARGUMENTS --bind ADDRESS --pidfile app.pid` in a directory; as a context manager it is ended for good.

    binds: false when something else than the command line says where to listen. prefix: what Python is to run first.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        address: Address | None = None,
        environment: Mapping[str, str] | None = None,
        binds: bool = True,
        prefix: Iterable[str] = (),
        pass_fds: Iterable[int] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.address = address or free_address()
        self.directory = directory
        self._log = directory / "log"
        bind = ("--bind", self.address.bind) if binds else ()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *prefix, "-m", "tailrace", *arguments, *bind, "--pidfile", "app.pid"],
                cwd=directory,
                env={**clean, "PYTHONUNBUFFERED": "1", "PWD": str(directory), **(environment or {})},
                stdin=stdin,
                stdout=log,
                stderr=log,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )

    def __enter__(self) -> Operated:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            sys.stderr.write(f"--- log in {self.directory}\n{self.log}")
        # The session is the test's own; whoever is left of it ends here.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def log(self) -> str:
        """All that any of its processes has written so far."""
        return self._log.read_text(errors="replace")

    def logged(self, text: str, times: int = 1) -> None:
        """Returns once the log has `text`."""
        self.until(lambda: self.log.count(text) >= times, f"{text!r} in the log")

    def replaced(self, reloads: int = 1) -> None:
        """Returns once this many reloads are complete and the workers that they replaced have ended: one that has been
        told to drain may still take a client until it reads that."""
        self.logged("reload complete", reloads)
        drained = set(re.findall(r"\(pid (\d+)\) drains", self.log))
        ends = [
            re.compile(rf"\(pid {pid}\) (has ended|.* while it drained|.* after its last request)") for pid in drained
        ]
        self.until(lambda: all(end.search(self.log) for end in ends), "the old workers' ends")

    def until(self, probe: object, what: str) -> None:
        """Returns once `probe()` is true."""
        assert callable(probe)
        end = time.monotonic() + DEADLINE
        while not probe():
            if time.monotonic() > end:
                pytest.fail(f"{what}: not within {DEADLINE:g} s:\n{self.log}")
            time.sleep(0.01)

    @property
    def master(self) -> int:
        """The number of the master's process, as the pid file has it."""
        return int((self.directory / "app.pid").read_text())

    def serves(self) -> Operated:
        """Returns once a worker serves."""
        self.logged("ready in")
        return self

    def tell(self, number: signal.Signals) -> None:
        """Sends a signal to the master of the moment."""
        os.kill(self.master, number)

    def stop(self) -> int:
        """Stops it, and returns when the last of its processes has ended: the status of the first."""
        self.tell(signal.SIGTERM)
        status = self.process.wait(DEADLINE)
        self.until(lambda: not self.processes(), "the end of all processes")
        return status

    def processes(self) -> list[int]:
        """The processes of its session that live."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found.append(int(path.parent.name))
        return found

    def get(self, target: str = "/", *fields: str) -> Response:
        """One request on a connection of its own."""
        return get(self.address, target, *fields)


@contextlib.contextmanager
def operating(directory: Path, *arguments: str, **more: Any) -> Iterator[Operated]:
    """One that serves, and that is stopped at the end unless the test has ended it."""
    with Operated(directory, *arguments, **more) as server:
        yield server.serves()
        if server.processes():
            server.stop()


class Checking:
    """Clients that ask without pause and check every byte of the answer; `body(n)` of the application is what request
    `/n` answers. Every second client keeps its connections as long as the server lets it; keeps: false if none does."""

    def __init__(self, address: Address, clients: int = 6, keeps: bool = True) -> None:
        self.address, self.keeps = address, keeps
        self.faults: list[str] = []
        self.counts: Counter[int] = Counter()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Checking:  # noqa: PYI034 - typing.Self is of Python 3.11
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @staticmethod
    def body(number: int) -> bytes:
        """What the application is to answer."""
        return b"%d." % number * (1 + number % 7 * 997)

    def _ask(self, place: int) -> None:
        client, number = None, place
        while not self._over.is_set() and not self.faults:
            number += len(self._threads)
            fields = "" if self.keeps and place % 2 else "Connection: close\r\n"
            try:
                client = client or Client(self.address, DEADLINE)
                response = client.ask(f"GET /{number} HTTP/1.1\r\nHost: test\r\n{fields}\r\n".encode())
                assert (response.status, response.body) == (200, self.body(number)), response
                if "close" in response.connection:
                    client.at_end(clean=True)
                    client.close()
                    client = None
                self.counts[place] += 1
            except Exception as error:
                self.faults.append(f"client {place}, request {number}: {error!r}")
        if client:
            client.close()

    def go_on(self, more: int = 20) -> None:
        """Returns once each client has had more answers."""
        before, end = self.counts.copy(), time.monotonic() + DEADLINE
        while not self.faults and any(self.counts[each] < before[each] + more for each in range(len(self._threads))):
            assert time.monotonic() < end, f"no answers: {self.counts - before}"
            time.sleep(0.005)
        assert not self.faults, self.faults
