"""SIGUSR2: a new master takes the place of the running one, with the sockets kept: new Python, new Penstock, new code.

The old master forks and executes the command it was started with. The new one finds in its environment which
descriptors are the listening sockets, and which is the line between the two. It starts its workers and says `R`; then
the old one says `G`, lets its workers finish, and ends. Until then either may fail without harm: when the new master
ends before its `R`, the old one goes on; when the old one is killed before its `G`, the end of the line is a `G` too.

`Origin` and `Successor` are the old master's, `Predecessor` the new one's. Thread: the master's only one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final, NoReturn

from penstock.errors import UpgradeError
from penstock.sockets import Listener

VARIABLE: Final = "_PENSTOCK_UPGRADE"
_READY: Final = b"R"
_FAILED: Final = b"E"
_GO: Final = b"G"


@dataclass(frozen=True)
class Origin:
    """How this process was started, taken down before anything changes it."""

    executable: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    directory: str

    @classmethod
    def here(cls) -> Origin:
        """That of this process. To be called right after `predecessor`, with the environment as it was inherited."""
        directory, shown = os.getcwd(), os.environ.get("PWD", "")
        # A deployment that switches a link is entered by the link: there the new code is.
        with contextlib.suppress(OSError):
            if os.path.samefile(shown, directory):
                directory = shown
        # The path, and not what stood on the command line, since Python finds its own files by it.
        return cls(sys.executable, (sys.executable, *sys.orig_argv[1:]), dict(os.environ), directory)


class Successor:
    """The new master as the old one sees it. `line` can be waited on: something to read is a report, or its end."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid, self.line = pid, line
        self._said = b""

    def read(self) -> bool | None:
        """True when it is ready, None when it has said nothing yet. Raises UpgradeError when it failed."""
        while True:
            try:
                said = self.line.recv(65536)
            except BlockingIOError:
                # Not at the byte itself: it may have ended since.
                return True if self._said == _READY else None
            except ConnectionResetError:
                said = b""
            self._said += said
            if not said:
                reason = self._said.removeprefix(_FAILED).removeprefix(_READY).decode(errors="replace")
                raise UpgradeError(f"the new master (pid {self.pid}) {reason or 'ended before its workers served'}")

    def go(self) -> None:
        """Tells it that it is the master now."""
        with contextlib.suppress(OSError):
            self.line.send(_GO)
        self.close()

    def stop(self) -> None:
        """Ends it: the old master was told to stop meanwhile. It must not have been reaped."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def reap(self) -> int | None:
        """Its wait status if it has ended; None while it lives. Not to be called again once it has said a status."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        return status if pid else None

    def close(self) -> None:
        """Closes our end of the line; also in workers, which inherit it."""
        self.line.close()


def start(origin: Origin, listeners: Iterable[Listener], passed: Iterable[int] = ()) -> Successor:
    """Starts the new master. passed: the descriptors that systemd passed to this one, used or not, for the new one is
    told of them all. Raises UpgradeError."""
    if os.getpid() == 1:
        raise UpgradeError(
            "this is process 1, whose end would end its container; start a new container, or reload the code by SIGHUP"
        )
    if not origin.executable:
        raise UpgradeError("Python does not know its own executable (sys.executable)")
    ours, theirs = socket.socketpair()
    with theirs:
        descriptors = [*(listener.socket.fileno() for listener in listeners), *passed]
        state = {
            "master": os.getpid(),
            "line": theirs.fileno(),
            "listeners": [[str(each.address), each.socket.fileno()] for each in listeners],
        }
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _execute(origin, {**origin.environ, VARIABLE: json.dumps(state)}, theirs, descriptors, mask)
        except OSError as error:
            ours.close()
            raise UpgradeError(f"no process can be started: {error.strerror}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    ours.setblocking(False)
    return Successor(pid, ours)


def _execute(
    origin: Origin,
    environ: Mapping[str, str],
    line: socket.socket,
    descriptors: Iterable[int],
    mask: Iterable[int],
) -> NoReturn:
    """In the forked child: becomes the new master, or says why not."""
    try:
        try:
            for number in signal.valid_signals():
                # The master's handlers would ring the master's bell.
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
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
    """The old master as the new one sees it. `line` can be waited on: something to read means that it has let go."""

    def __init__(self, pid: int, line: socket.socket, listeners: Iterable[tuple[str, int]]) -> None:
        self.pid, self.line = pid, line
        self._left = list(listeners)
        self.dropped: list[str] = []

    def listener(self, address: str) -> int | None:
        """The descriptor of a socket that the old master bound to this address; each is given once."""
        for index, (known, descriptor) in enumerate(self._left):
            if known == address:
                del self._left[index]
                return descriptor
        return None

    def close_rest(self) -> None:
        """Closes the sockets of addresses that the settings no longer have: `dropped`."""
        for address, descriptor in self._left:
            self.dropped.append(address)
            if not address.startswith("fd://"):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._left.clear()

    def ready(self) -> None:
        """Tells it that our workers serve."""
        with contextlib.suppress(OSError):
            self.line.send(_READY)

    def has_let_go(self) -> bool:
        """True when it has told us to go on alone, or is gone."""
        try:
            self.line.recv(64)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Closes our end of the line; also in workers, which inherit it."""
        self.line.close()


def predecessor(environ: MutableMapping[str, str]) -> Predecessor | None:
    """The old master that started us, if one did. Takes its variable out of `environ`, and makes the sockets that
    systemd passed to it ours."""
    said = environ.pop(VARIABLE, None)
    if said is None:
        return None
    try:
        state = json.loads(said)
        pid, descriptor = int(state["master"]), int(state["line"])
        listeners = [(str(address), int(number)) for address, number in state["listeners"]]
        # A process that somehow inherited the variable, without the descriptors, is no new master. Our parent's number
        # tells nothing: the old master may have ended meanwhile, and a script may stand between.
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
