"""SIGUSR2: a new master, with new Python, Tailrace or application code, replaces the running one on the same sockets.

The old master forks and executes the command that it was started with. A variable of the environment gives the new
master the descriptors of the listening sockets and of the line, which is a socket between the two masters. The new
master starts its workers and sends `R`. Then the old one sends `G`, lets its workers finish, and ends. If the new
master ends before its `R`, the old one keeps serving; if the old one is killed before its `G`, the end of the line
means `G`.

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
    """The new master, for the old one. When `line` is readable, there is a report, or the new master has ended."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid, self.line = pid, line
        self._said = b""

    def read(self) -> bool | None:
        """True when it is ready, None when it has not reported yet. Raises UpgradeError when it failed."""
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
                reason = self._said.removeprefix(_FAILED).removeprefix(_READY).decode(errors="replace")
                raise UpgradeError(f"the new master (pid {self.pid}) {reason or 'ended before its workers served'}")

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
        """Closes our end of the line; also called in workers, which inherit it."""
        self.line.close()


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
    with theirs:
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
            raise UpgradeError(f"cannot fork the new master: {denial(error)}") from None
        if pid == 0:
            _execute(origin, {**origin.environ, VARIABLE: json.dumps(state)}, theirs, descriptors, mask)
    ours.setblocking(False)
    forks.keep_from_children(ours)
    return Successor(pid, ours)


def _execute(
    origin: Origin,
    environ: Mapping[str, str],
    line: socket.socket,
    descriptors: Iterable[int],
    mask: Iterable[int],
) -> NoReturn:
    """In the forked child: executes the new master, or reports why that failed."""
    try:
        try:
            signals.reset()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.chdir(origin.directory)
            for descriptor in (line.fileno(), *descriptors):
                os.set_inheritable(descriptor, True)
            os.execve(origin.executable, origin.arguments, environ)
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
