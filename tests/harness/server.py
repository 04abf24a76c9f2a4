"""A real server process with an application of tests/apps: started, talked to, stopped, and held to a clean end."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from .addresses import Address, free_address
from .encrypted import TLS, authority
from .greenlets import GEVENT, as_greenlets
from .peers import PEER, peer_command
from .wire import Client, Response, get

APPS = Path(__file__).resolve().parent.parent / "apps"
START_DEADLINE = 60.0
STOP_DEADLINE = 20.0


class Server:
    """`tailrace APPLICATION --bind ADDRESS`, with every keyword an option: `threads=4` is `--threads 4`. Once it is
    made it listens, also on each `Address` among the options, such as `status=free_address()`.

    stderr: where standard error goes, in place of `log`. python: the interpreter of another environment.
    `process` is the one that was started, the master; `pid` is the one that serves. As a context manager it is stopped
    with SIGTERM at the end, and must end with status 0 and without a panic.
    """

    def __init__(
        self,
        application: str,
        *arguments: str,
        address: Address | None = None,
        environment: dict[str, str] | None = None,
        directory: Path = APPS,
        pass_fds: Iterable[int] = (),
        stderr: int | None = None,
        open_files: int | None = None,
        python: str = sys.executable,
        **options: object,
    ) -> None:
        self.address = address or free_address()
        if TLS and not PEER and "--bind" not in arguments:
            self.address = replace(self.address, is_encrypted=True)
        if PEER:
            command = peer_command(application, self.address, int(str(options.get("threads", 16))), python)
        else:
            command = [python, "-m", "tailrace", application, *arguments]
            if "--bind" not in arguments:
                command += ["--bind", self.address.bind]
            if self.address.is_encrypted:
                command += ["--certfile", str(authority().chain), "--keyfile", str(authority().key)]
            if GEVENT:
                command += ["--gevent"]
                options = as_greenlets(options)
            for name, value in options.items():
                command += [f"--{name.replace('_', '-')}", value.bind if isinstance(value, Address) else str(value)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__, after the process
        self._ended_log = ""
        self.may_panic = False
        self.command = command
        self._has_master = not PEER and "--debug" not in arguments
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")}
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env={**clean, "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log if stderr is None else stderr,
            pass_fds=tuple(pass_fds),
            preexec_fn=open_files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))),
        )
        try:
            for each in (self.address, *(value for value in options.values() if isinstance(value, Address))):
                await_listening(self.process, each, lambda: self.log, START_DEADLINE)
        except BaseException:
            self.kill()
            self._log.close()
            raise

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.process.poll() is None:
            if error is not None:
                self.kill()
            elif self.stop() != 0 and not PEER:
                pytest.fail(f"the server ended with status {self.process.returncode}:\n{self.log}")
        if error is not None:
            sys.stderr.write(f"--- log of {' '.join(self.command)}\n{self.log}")
        elif not PEER:
            assert self.may_panic or "panicked" not in self.log, self.log
        self._ended_log = self.log
        self._log.close()

    @property
    def log(self) -> str:
        """All that the process has written so far."""
        if self._log.closed:
            return self._ended_log
        # Not seek(): the process shares the file position.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def logged(self, text: str, deadline: float = 10.0) -> bool:
        """True once the log has `text`: a line may be written just after the response that it belongs to."""
        end = time.monotonic() + deadline
        while text not in self.log:
            if time.monotonic() > end or self.process.poll() is not None:
                return text in self.log
            time.sleep(0.01)
        return True

    @property
    def url(self) -> str:
        """URL of the root."""
        return self.address.url

    @property
    def pid(self) -> int:
        """The process that serves; of several workers, the first."""
        return self.workers()[0] if self._has_master else self.process.pid

    def workers(self, count: int = 1, deadline: float = START_DEADLINE) -> list[int]:
        """The workers, once there are at least so many: those that boot and those that drain included."""
        end = time.monotonic() + deadline
        while len(found := children(self.process.pid)) < count:
            if time.monotonic() > end or self.process.poll() is not None:
                pytest.fail(f"{len(found)} workers, not {count}:\n{self.log}")
            time.sleep(0.01)
        return found

    def kill(self) -> None:
        """Ends everything at once, whatever state it is in."""
        pids = children(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in pids:
            # Without their master they would finish first what they have begun.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def client(self, deadline: float = 10.0) -> Client:
        """A connection."""
        return Client(self.address, deadline)

    def get(self, target: str = "/", *fields: str) -> Response:
        """One request on a connection of its own."""
        return get(self.address, target, *fields)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process that was started."""
        self.process.send_signal(number)

    def wait(self, deadline: float = STOP_DEADLINE) -> int:
        """Waits for the process to end by itself; its exit status."""
        try:
            return self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the server did not stop within {deadline} s:\n{self.log}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks the process to end; its exit status."""
        self.send_signal(number)
        return self.wait()

    def threads(self) -> list[str]:
        """Names of the serving process's threads, as the kernel knows them."""
        names = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/comm"):
            # A thread may end meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                names.append(path.read_text().strip())
        return names


# What servers of all kinds write when they cannot do what they are to do.
_COMPLAINT = re.compile("error|warning|emerg|alert|cannot|could not", re.IGNORECASE)


def await_listening(
    process: subprocess.Popen[bytes], address: Address, log: Callable[[], str], deadline: float
) -> None:
    """Returns once the process listens on the address; fails, with what the process says about it, when it does not.

    log: gives what the process has written so far. deadline: in seconds.
    """
    end = time.monotonic() + deadline
    while True:
        # In this order: what it has written before its end is complete.
        status, written = process.poll(), log()
        try:
            address.connect().close()
            return
        except OSError as error:
            refused = error
        if status is not None:
            what = f"ended with status {status}"
        elif f"cannot listen on {address.bind}" in written:
            what = "does not listen"
        elif time.monotonic() > end:
            what = f"does not listen within {deadline:g} s ({refused})"
        else:
            time.sleep(0.01)
            continue
        lines = written.splitlines()
        said = next(filter(_COMPLAINT.search, lines), lines[-1] if lines else "nothing")
        pytest.fail(f"{process.args} for {address.bind} {what}, and says: {said}\n--- its log\n{written}")


def shared(start: Callable[..., Server], *arguments: object, **options: object) -> Callable[[], Iterator[Server]]:
    """A fixture: one server for all tests of a module, started by `Server` or `on_greenlets`."""

    @pytest.fixture(scope="module")
    def started() -> Iterator[Server]:
        with start(*arguments, **options) as server:
            yield server

    return started


def children(pid: int) -> list[int]:
    """The children of a process, oldest first; none when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
