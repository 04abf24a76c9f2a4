"""SIGUSR2: a new master, with new Python, Tailrace or application code, replaces the running one on the same sockets.

The old master forks and executes the command that it was started with. A variable of the environment gives the new
master the descriptors of the listening sockets and of the line, which is a socket between the two masters. The new
master starts its workers and sends `R`. Then the old one sends `G`, lets its workers finish, and ends. If the new
master ends before its `R`, the old one keeps serving; if the old one is killed before its `G`, the end of the line
means `G`.

Until the new master has a log, its standard error is a second socket to the old one, which logs why it ended, even if
Python itself did not start. Once it has taken its own standard error back, it sends `S`.

`Origin` and `Successor` are for the old master, `Predecessor` for the new one. Thread: the master's only one.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Final, NamedTuple, NoReturn

from tailrace.errors import UpgradeError, denial
from tailrace.system import directory, forks, signals

VARIABLE: Final = "_TAILRACE_UPGRADE"
_OWN_STDERR: Final = b"S"
_READY: Final = b"R"
_FAILED: Final = b"E"
_GO: Final = b"G"
_HOLDS: Final = b"H"
_STDERR: Final = 2
# What `tailrace` writes in front of the error that ends it.
_ERROR: Final = "tailrace: error: "
# Maximum number of bytes of its text that are kept: the last ones.
_MAX_TEXT: Final = 16384
# Maximum size of a write to a UNIX datagram socket, by the default of net.core.wmem_max.
_MAX_WRITE: Final = 212_992
# Number of writes that are read at a time, so that a process that writes without end does not stop the master's loop.
_WRITES: Final = 1024
# From linux/socket.h, which Python's socket module does not have, and a filter of one instruction: BPF_RET, 0 bytes.
_SO_ATTACH_FILTER: Final = 26
_DROP: Final = struct.pack("HBBI", 0x06, 0, 0, 0)


class Origin(NamedTuple):
    """How this process was started, noted before anything changes it."""

    executable: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    directory: str

    @classmethod
    def here(cls) -> Origin:
        """The origin of this process. Call it right after `predecessor`, before the environment is changed."""
        # sys.executable and not the word of the command line, since Python finds its own files by it.
        return cls(sys.executable, (sys.executable, *sys.orig_argv[1:]), dict(os.environ), directory.named(None))


class Successor:
    """The new master, for the old one. When one of `descriptors` is readable, there is a report or text, or the new
    master has ended."""

    def __init__(self, pid: int, line: socket.socket, stderr: socket.socket) -> None:
        """stderr: the other end of its standard error."""
        self.pid, self.line, self._stderr = pid, line, stderr
        self._said, self._text = b"", b""

    @property
    def descriptors(self) -> list[int]:
        """Those to wait for."""
        return [each.fileno() for each in (self.line, self._stderr) if each.fileno() >= 0]

    @property
    def text(self) -> str:
        """What it has written to its standard error so far, before it had a log."""
        return self._text.decode(errors="replace").rstrip()

    def read(self) -> bool | None:
        """True when it is ready, None when it has not reported yet. Raises UpgradeError when it failed."""
        has_ended = self._read_report()
        self._read_text()
        if has_ended:
            reason = self._said.partition(_FAILED)[2].decode(errors="replace")
            raise UpgradeError(f"the new master (pid {self.pid}) {reason or self._ended()}")
        if self._said == _READY:
            self.stop()
            raise UpgradeError(
                f"the new master (pid {self.pid}) still writes its errors to this master, as Tailrace 0.2 does; to "
                "go back to Tailrace 0.2, restart the server"
            )
        return True if self._said == _OWN_STDERR + _READY else None

    def _read_report(self) -> bool:
        """True: it has ended."""
        while True:
            try:
                said = self.line.recv(65536)
            except BlockingIOError:
                # Only when there is no more to read: it may have ended after its report.
                return False
            except ConnectionResetError:
                said = b""
            self._said += said
            if not said:
                return True

    def _read_text(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_WRITES):
                self._text = (self._text + self._stderr.recv(_MAX_WRITE))[-_MAX_TEXT:]

    def _ended(self) -> str:
        lines = self.text.splitlines()
        # The last line of a traceback is its message; after a usage error, hints follow.
        found = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)] or lines
        return "exited before its workers were ready" + (f": {found[-1]}" if found else "")

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
        self._stderr.close()


def start(
    origin: Origin, listeners: Iterable[tuple[str, int]], passed: Iterable[int] = (), variables: str = ""
) -> Successor:
    """Starts the new master. listeners: names and descriptors of sockets that it is to have. passed: all descriptors
    that systemd passed to this one, used or not. variables: what `envfile` has for it.

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
    # Datagrams, since these alone can later be sent elsewhere: see `_discard`.
    reads, writes = socket.socketpair(type=socket.SOCK_DGRAM)
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
            _execute(origin, state, theirs, writes, descriptors, variables, mask)
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
    variables: str,
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
            descriptors = [line.fileno(), kept, *descriptors]
            if variables:
                descriptors.append(_memory_file(variables))
                state["variables"] = descriptors[-1]
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            os.dup2(stderr.fileno(), _STDERR)
            os.execve(origin.executable, origin.arguments, {**origin.environ, VARIABLE: json.dumps(state)})
        except OSError as error:
            line.send(_FAILED + f"cannot be started: {error.filename or origin.executable}: {error.strerror}".encode())
    finally:
        os._exit(1)


def _memory_file(text: str) -> int:
    """A file in memory with this content. The environment of a process has less room, and others can read it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tailrace-variables")
    else:
        # A Python that was built for glibc before 2.27.
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class Predecessor:
    """The old master, for the new one. When `line` is readable, it has handed over or ended."""

    def __init__(
        self,
        pid: int,
        line: socket.socket,
        listeners: Iterable[tuple[str, int]],
        stderr: int | None = None,
        variables: int | None = None,
    ) -> None:
        """stderr: the descriptor of the standard error of the old master; None: we have it, from Tailrace 0.2.
        variables: that of a file for `envfile`, which closes it."""
        self.pid, self.line, self._stderr, self.variables = pid, line, stderr, variables
        self._left = list(listeners)
        self.dropped: list[str] = []
        # A process of the old master holds connections.
        self.holds = False

    @contextlib.contextmanager
    def own_stderr(self) -> Iterator[None]:
        """Gives this process the standard error of the old master, before anything opens it as a log. An exception in
        the context gives it back to the old master, so that this logs why we end."""
        if self._stderr is None:
            yield
            return
        theirs = os.dup(_STDERR)
        _become_stderr(self._stderr)
        os.close(self._stderr)
        try:
            yield
        except BaseException:
            _become_stderr(theirs)
            raise
        # It is no socket if code of a .pth file has replaced it.
        with contextlib.suppress(OSError), socket.socket(fileno=theirs) as found:
            _discard(found)
        with contextlib.suppress(OSError):
            self.line.send(_OWN_STDERR)

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
        ours = {name: int(state[name]) for name in ("stderr", "variables") if name in state}
        for number in ours.values():
            os.fstat(number)
        line = _line(descriptor)
    except (ValueError, KeyError, TypeError, OSError, OverflowError, RecursionError):
        return None
    for number in (descriptor, *ours.values(), *(number for _, number in listeners)):
        os.set_inheritable(number, False)
    for variable in ("LISTEN_PID", "WATCHDOG_PID"):
        if environ.get(variable) == str(pid):
            environ[variable] = str(os.getpid())
    line.setblocking(False)
    forks.keep_from_children(line)
    return Predecessor(pid, line, listeners, **ours)


def _become_stderr(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os.dup2(descriptor, _STDERR)


def _discard(stderr: socket.socket) -> None:
    """The kernel drops what is written to the socket from now on. Processes that this one has started before, such as
    agents of a .pth file, may keep it as their standard error; without a reader, they would wait or fail.

    It sends to itself, and a filter accepts nothing. Raises OSError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind("")
        stderr.connect(other.getsockname())
    with contextlib.suppress(ConnectionRefusedError):
        # Only this removes its peer, and with another peer it may not send to itself.
        stderr.send(b"")
    code = array.array("B", _DROP)
    stderr.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, code.buffer_info()[0]))
    stderr.bind("")
    stderr.connect(stderr.getsockname())


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
