"""SIGUSR2: a new master, with new Python, Tailrace or application code, replaces the running one on the same sockets.

The old master forks and executes the command that it was started with. A variable of the environment gives the new
master the descriptors of the listening sockets and of the line, which is a socket between the two masters. The new
master starts its workers and sends `R`. Then the old one sends `G`, lets its workers finish, and ends. If the new
master ends before its `R`, the old one keeps serving; if the old one is killed before its `G`, the end of the line
means `G`.

Until the new master has a log, its standard error is a second socket to the old one, which logs why it ended, even if
Python itself did not start.

`Origin` and `Successor` are for the old master, `Predecessor` for the new one. Thread: the master's only one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Final, NamedTuple, NoReturn

from tailrace.errors import UpgradeError, denial
from tailrace.system import forks, signals

VARIABLE: Final = "_TAILRACE_UPGRADE"
_READY: Final = b"R"
_FAILED: Final = b"E"
_GO: Final = b"G"
_HOLDS: Final = b"H"
_STDERR: Final = 2
# What `tailrace` writes in front of the error that ends it.
_ERROR: Final = "tailrace: error: "
# Maximum number of bytes of its text that are kept: the last ones.
_MAX_TEXT: Final = 16384


class Origin(NamedTuple):
    """How this process was started, noted before anything changes it."""

    executable: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    directory: str

    @classmethod
    def here(cls) -> Origin:
        """The origin of this process. Call it right after `predecessor`, before the environment is changed."""
        directory, shown = os.getcwd(), os.environ.get("PWD", "")
        # $PWD may have a symbolic link, which a deployment changes to the new code; getcwd() has none.
        with contextlib.suppress(OSError):
            if os.path.samefile(shown, directory):
                directory = shown
        # sys.executable and not the word of the command line, since Python finds its own files by it.
        return cls(sys.executable, (sys.executable, *sys.orig_argv[1:]), dict(os.environ), directory)


class Successor:
    """The new master, for the old one. When one of `descriptors` is readable, there is a report or text, or the new
    master has ended."""

    def __init__(self, pid: int, line: socket.socket, stderr: socket.socket | None = None) -> None:
        """stderr: the other end of its standard error; None: it has its own."""
        self.pid, self.line, self._stderr = pid, line, stderr
        self._said, self._text = b"", b""

    @property
    def descriptors(self) -> list[int]:
        """Those to wait for."""
        return [each.fileno() for each in (self.line, self._stderr) if each and each.fileno() >= 0]

    @property
    def text(self) -> str:
        """What it has written to its standard error so far, before it had a log."""
        return self._text.decode(errors="replace").rstrip()

    def read(self) -> bool | None:
        """True when it is ready, None when it has not reported yet. Raises UpgradeError when it failed."""
        is_ready = self._read_report()
        self._read_text()
        if is_ready is False:
            reason = self._said.removeprefix(_FAILED).removeprefix(_READY).decode(errors="replace")
            raise UpgradeError(f"the new master (pid {self.pid}) {reason or self._ended()}")
        if is_ready and self._stderr:
            self.stop()
            raise UpgradeError(
                f"the new master (pid {self.pid}) still writes its errors to this one, as Tailrace 0.2 does; to go "
                "back to that version, restart the server"
            )
        return is_ready

    def _read_report(self) -> bool | None:
        """False: it has ended."""
        while True:
            try:
                said = self.line.recv(65536)
            except BlockingIOError:
                # Only when there is no more to read: it may have ended after its report.
                return True if self._said == _READY else None
            except ConnectionResetError:
                said = b""
            self._said += said
            if not said:
                return False

    def _read_text(self) -> None:
        while self._stderr:
            try:
                text = self._stderr.recv(65536)
            except BlockingIOError:
                return
            except ConnectionResetError:
                text = b""
            self._text = (self._text + text)[-_MAX_TEXT:]
            if not text:
                self._stderr.close()
                self._stderr = None

    def _ended(self) -> str:
        lines = self.text.splitlines()
        # The last line of a traceback is its message; after a usage error, hints follow.
        found = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)] or lines
        return "ended before its workers served" + (f": {found[-1]}" if found else "")

    def go(self, *, holds: bool = False) -> None:
        """Makes it the master. holds: a process of the old one holds connections, which it is to take over."""
        with contextlib.suppress(OSError):
            self.line.send(_GO + _HOLDS * holds)
        self.close()

    def stop(self) -> None:
        """Ends it, because the old master was told to stop. Not to be called once it was reaped."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def reap(self) -> int | None:
        """Its wait status if it has ended; None while it lives. Not to be called again after a status."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        return status if pid else None

    def close(self) -> None:
        """Closes our ends; also called in workers, which inherit them."""
        self.line.close()
        if self._stderr:
            self._stderr.close()


def start(origin: Origin, listeners: Iterable[tuple[str, int]], passed: Iterable[int] = ()) -> Successor:
    """Starts the new master. listeners: names and descriptors of sockets that it is to have. passed: all descriptors
    that systemd passed to this one, used or not.

    Raises UpgradeError.
    """
    if os.getpid() == 1:
        raise UpgradeError(
            "a new master cannot replace process 1, because its container would stop; start a new container, or reload "
            "the code with SIGHUP"
        )
    if not origin.executable:
        raise UpgradeError("cannot start a new master, since Python does not know its executable (sys.executable)")
    ours, theirs = socket.socketpair()
    reads, writes = socket.socketpair()
    with theirs, writes:
        listeners = list(listeners)
        descriptors = [*(number for _, number in listeners), *passed]
        state = {
            "master": os.getpid(),
            "line": theirs.fileno(),
            "listeners": listeners,
        }
        try:
            pid, mask = forks.fork()
        except OSError as error:
            ours.close()
            reads.close()
            raise UpgradeError(f"cannot fork the new master: {denial(error)}") from None
        if pid == 0:
            _execute(origin, state, theirs, writes, descriptors, mask)
    for each in (ours, reads):
        each.setblocking(False)
        forks.keep_from_children(each)
    return Successor(pid, ours, reads)


def _execute(
    origin: Origin,
    state: dict[str, object],
    line: socket.socket,
    stderr: socket.socket,
    descriptors: Iterable[int],
    mask: Iterable[int],
) -> NoReturn:
    """In the forked child: executes the new master, or reports why that failed."""
    try:
        try:
            signals.reset()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.chdir(origin.directory)
            kept = os.dup(_STDERR)
            state["stderr"] = kept
            for descriptor in (line.fileno(), kept, *descriptors):
                os.set_inheritable(descriptor, True)
            os.dup2(stderr.fileno(), _STDERR)
            os.execve(origin.executable, origin.arguments, {**origin.environ, VARIABLE: json.dumps(state)})
        except OSError as error:
            line.send(_FAILED + f"cannot be started: {error.filename or origin.executable}: {error.strerror}".encode())
    finally:
        os._exit(1)


class Predecessor:
    """The old master, for the new one. When `line` is readable, it has handed over or ended."""

    def __init__(self, pid: int, line: socket.socket, listeners: Iterable[tuple[str, int]]) -> None:
        self.pid, self.line = pid, line
        self._left = list(listeners)
        self.dropped: list[str] = []
        # A process of the old master holds connections.
        self.holds = False

    def listener(self, address: str) -> int | None:
        """The descriptor of a socket that the old master bound to this address. Each is returned once."""
        for index, (known, descriptor) in enumerate(self._left):
            if known == address:
                del self._left[index]
                return descriptor
        return None

    def close_rest(self) -> None:
        """Closes the sockets of addresses that the settings no longer have; `dropped` has these addresses."""
        for address, descriptor in self._left:
            self.dropped.append(address)
            if not address.startswith("fd://"):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._left.clear()

    def ready(self) -> None:
        """Reports that our workers serve."""
        with contextlib.suppress(OSError):
            self.line.send(_READY)

    def has_let_go(self) -> bool:
        """True when it has handed over, or has ended."""
        try:
            self.holds = _HOLDS in self.line.recv(64)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Closes our end of the line; also called in workers, which inherit it."""
        self.line.close()


def predecessor(environ: MutableMapping[str, str]) -> Predecessor | None:
    """The old master that started this process, if one did.

    Removes its variable from `environ`, and changes systemd's variables so that they name this process.
    """
    said = environ.pop(VARIABLE, None)
    if said is None:
        return None
    try:
        state = json.loads(said)
        pid, descriptor = int(state["master"]), int(state["line"])
        listeners = [(str(address), int(number)) for address, number in state["listeners"]]
        # A process that has inherited the variable, and not the descriptors, is no new master. The number of the parent
        # does not tell: the old master may have ended meanwhile, or a script may be its child and our parent.
        if not all(map(_is_listener, (number for _, number in listeners))):
            return None
        line = _line(descriptor)
        _take_back_stderr(state.get("stderr"))
    except (ValueError, KeyError, TypeError, OSError):
        return None
    for number in (descriptor, *(number for _, number in listeners)):
        os.set_inheritable(number, False)
    for variable in ("LISTEN_PID", "WATCHDOG_PID"):
        if environ.get(variable) == str(pid):
            environ[variable] = str(os.getpid())
    line.setblocking(False)
    forks.keep_from_children(line)
    return Predecessor(pid, line, listeners)


def _take_back_stderr(kept: int | None) -> None:
    """Standard error is what it was for the old master. kept: its descriptor; None: it was not changed, by Tailrace
    0.2. Raises OSError and TypeError."""
    if kept is not None:
        sys.stderr.flush()
        os.dup2(kept, _STDERR)
        os.close(kept)


def _line(descriptor: int) -> socket.socket:
    """The line between two masters. Raises OSError when the descriptor is something else."""
    line = socket.socket(fileno=descriptor)
    if (line.family, line.type) != (socket.AF_UNIX, socket.SOCK_STREAM) or line.getsockname():
        line.detach()
        raise OSError("another socket")
    return line


def _is_listener(descriptor: int) -> bool:
    """Whether it is a socket that listens."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        return found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    except OSError:
        return False
    finally:
        found.detach()
