"""One running server: started on its core, polled until it answers, measured, and stopped with all its children.

Each server has its own process group, and only that group is signalled. If the command is killed, a process of this
module survives it and kills the remaining servers, some of which are stopped (SIGSTOP).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace_compare import machine, nginx, served
from tailrace_compare.peers import NGINX, ORDINARY_USER, Peer, as_ordinary_user, commands
from tailrace_compare.served import files

HOST = "127.0.0.1"
START_SECONDS = 20.0
STOP_SECONDS = 1.5


class NotServing(Exception):
    """The server did not start, or no longer answers; the text is the last line of its output."""


# Below the ports that the kernel gives to clients, which may be in TIME_WAIT by the thousand; each is used once.
PORTS = iter(range(18000, 32000))


def free_port() -> int:
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise NotServing("no free port")


@dataclass(frozen=True)
class Place:
    """The location of an application, and how to check that it is served.

    directory: the working directory of servers, which is searched for modules first; None for `served`. ready: the
    target to request. any_status: accept any status, because the application is the user's.
    """

    directory: Path | None = None
    ready: str = "/ready"
    any_status: bool = False


SERVED = Place()


class Server:
    """A peer that serves one application. The constructor starts it, `stop` ends it. Raises NotServing, OSError or
    subprocess.SubprocessError if it cannot be started.

    cores: None for one process on the server's core; otherwise nothing is pinned, and there is a worker for each of
    this many cores.
    """

    def __init__(
        self,
        peer: Peer,
        app: str,
        over_unix: bool = False,
        many: bool = False,
        extra: str = "",
        place: Place = SERVED,
        cores: int | None = None,
    ) -> None:
        self.peer = peer
        self.place = place
        self.state = Path(tempfile.mkdtemp(prefix="tailrace-compare-"))
        # Readable, since Apache's process is another user's; not writable, since servers import from here.
        self.state.chmod(0o755)
        if peer.package == "mod_wsgi" and as_ordinary_user():
            apache = self.state / "apache"
            apache.mkdir()
            with contextlib.suppress(LookupError):
                shutil.chown(apache, *ORDINARY_USER)
        self.port = free_port()
        self.socket = str(self.state / "app.sock") if over_unix else None
        self.many = many
        if peer.name == NGINX:
            nginx.configure(self.state, files.DIRECTORY, HOST, self.port)
        else:
            nginx.configure_front(self.state, HOST, self.port, cores or 1)
        values = {"app": app, "host": HOST, "port": str(self.port), "state": str(self.state)}
        values |= {"bin": str(peer.directory()), "python": str(commands(peer.home()) / "python")}
        # Of this directory the applications alone: the Tailrace that is measured is the one of the environment, as the
        # other servers are, and not the package that lies beside them.
        modules = self.state / "path"
        modules.mkdir(0o755)
        directory = modules
        if place.directory is None:
            (modules / "served").symlink_to(Path(served.__file__).parent)
            (modules / files.BESIDE).symlink_to(files.DIRECTORY)
        else:
            # By a name that no application has, and without what is imported from beside it.
            program = modules / "tailrace_compare_serve.py"
            shutil.copy(Path(served.__file__).with_name("serve.py"), program)
            values["serve"] = str(program)
            directory = place.directory
        arguments = peer.arguments(over_unix, many, cores or 1, socket=str(self.socket), **values)
        arguments += shlex.split(extra)
        environment = dict(os.environ, PATH=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        before = [] if place.directory is None else [os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(each for each in (str(directory), *before) if each)
        self.log = (self.state / "log").open("wb")
        self.begun = time.perf_counter()
        self.ready_after: float | None = None
        try:
            self.process = subprocess.Popen(
                [*(machine.pinned(machine.SERVER_CORE) if cores is None else machine.everywhere()), *arguments],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # By the new process itself: nothing can end this one between a start and its note.
                preexec_fn=SURVIVOR.told_of(self.state),
            )
        except BaseException:
            self.log.close()
            shutil.rmtree(self.state, ignore_errors=True)
            raise

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def connect(self, timeout: float = 5.0, source: str | None = None) -> socket.socket:
        """A connection to the server. Raises OSError."""
        if self.socket is not None:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(timeout)
            connection.connect(self.socket)
            return connection
        connection = socket.create_connection((HOST, self.port), timeout, (source, 0) if source else None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def wait_until_ready(self) -> None:
        """Returns when its target has been answered. Raises NotServing."""
        end = time.perf_counter() + START_SECONDS
        while (left := end - time.perf_counter()) > 0:
            if self.process.poll() is not None:
                raise NotServing(f"ended with status {self.process.returncode}: {self.last_words()}")
            if self.answers(min(left, 2.0)):
                self.ready_after = time.perf_counter() - self.begun
                return
            time.sleep(0.005)
        raise NotServing(f"did not respond within {START_SECONDS:.0f} s: {self.last_words()}")

    def answers(self, timeout: float = 2.0) -> bool:
        """Whether a request on a new connection is answered by the application in time."""
        try:
            with self.connect(timeout) as connection:
                head = f"GET {self.place.ready} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode())
                begin = b""
                while len(begin) < 12 and (part := connection.recv(4096)):
                    begin += part
        except OSError:
            return False
        return begin[9:12].isdigit() if self.place.any_status else begin[9:12] == b"200"

    def closes(self, timeout: float = 2.0) -> bool:
        """Whether it ends a connection after the response to a request with `Connection: close` (RFC 9112, 9.6)."""
        try:
            with self.connect(timeout) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                while connection.recv(65536):
                    pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def pids(self) -> list[int]:
        """The server's processes: the first one and all its descendants."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            found.append(pid)
            queue += children.get(pid, [])
        return found

    def memory(self) -> int:
        """Bytes of memory that are the server's: shared pages counted in proportion."""
        return sum(proportional_set_size(pid) for pid in self.pids())

    def processor_seconds(self) -> float:
        """What all threads of all its processes have used so far, to the nanosecond; ended threads included."""
        return sum(processor_seconds(pid) for pid in self.pids())

    def last_words(self) -> str:
        self.log.flush()
        text = (self.state / "log").read_text(errors="replace")
        # The report is read on other machines.
        for path, short in ((self.state / "path", "."), (commands().parent, ".venv"), (Path.home(), "~")):
            text = text.replace(str(path), short)
        said = [line.strip() for line in text.splitlines() if line.strip()]
        return said[-1][:200] if said else "no output"

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def signal_first(self, number: int) -> None:
        """Signals only the first process: the master, if there is one."""
        self.process.send_signal(number)

    def stop(self) -> None:
        stop([self])


def proportional_set_size(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def processor_seconds(pid: int) -> float:
    # The number that clock_getcpuclockid(3) gives a process's clock: CPUCLOCK_SCHED of linux/posix-timers.h.
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def stop(servers: list[Server]) -> None:
    """Stops servers concurrently: SIGTERM first, then SIGKILL."""
    for server in servers:
        server.signal(signal.SIGTERM)
        # One that is halted ends no sooner.
        server.signal(signal.SIGCONT)
    end = time.perf_counter() + STOP_SECONDS
    for server in servers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(max(0.0, end - time.perf_counter()))
    for server in servers:
        server.signal(signal.SIGKILL)
        server.process.wait()
        server.log.close()
        SURVIVOR.forget(server.process.pid)
        shutil.rmtree(server.state, ignore_errors=True)


@contextlib.contextmanager
def serving(peer: Peer, app: str, over_unix: bool = False, many: bool = False) -> Iterator[Server]:
    """A server for the length of a `with`. Raises NotServing."""
    server = Server(peer, app, over_unix, many)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


class Survivor:
    """A process that knows each server, and ends the remaining ones when this process is gone."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def pipe(self) -> int:
        """Its input; starts it if necessary."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SURVIVES], stdin=subprocess.PIPE, start_new_session=True
            )
        assert self.process.stdin is not None
        return self.process.stdin.fileno()

    def told_of(self, state: Path) -> Callable[[], None]:
        """What the child process does before it executes the server."""
        pipe = self.pipe()
        return lambda: tell(pipe, f"+ {os.getpid()} {state}\n")

    def forget(self, pid: int) -> None:
        tell(self.pipe(), f"- {pid} \n")


def tell(pipe: int, line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(pipe, line.encode())


SURVIVES = """
import os, shutil, signal, sys
left = {}
for line in sys.stdin:
    sign, pid, state = line.rstrip("\\n").split(" ", 2)
    if sign == "+":
        left[int(pid)] = state
    else:
        left.pop(int(pid), None)
for pid, state in left.items():
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    shutil.rmtree(state, ignore_errors=True)
"""
SURVIVOR = Survivor()
