"""The pid file: the number of the server's main process; one server for one file.

Thread: the main one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Final

from tailrace.errors import ConfigError

# Maximum wait for other servers that start at the same moment (seconds).
_MAX_LOCK_WAIT: Final = 10.0


class PidFile:
    """The file of one process.

    It is written in one step, so that a reader finds a whole number or no file. Only the process whose number is in it
    removes it: after an upgrade the new master has written its own number.
    """

    def __init__(self, path: str) -> None:
        # Absolute: the application may change the directory.
        self.path = os.path.abspath(path)

    def check(self, predecessor: int | None = None) -> None:
        """Raises ConfigError when the file has the number of a living process, or cannot be read.

        predecessor: the process that may have it nevertheless.
        """
        try:
            pid = self._number()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(
                f"--pidfile {self.path}: cannot be read: {error.strerror}; choose another file, or change its owner"
            ) from None
        if pid is not None and pid not in (os.getpid(), predecessor) and _lives(pid, os.stat(self.path).st_mtime):
            raise ConfigError(
                f"--pidfile {self.path}: process {pid} is already running; stop it (`kill {pid}`), or choose another "
                "--pidfile"
            )

    def claim(self) -> None:
        """Checks and writes the file. If several processes do this concurrently, one succeeds. Raises ConfigError."""
        with self._locked():
            self.check()
            self.write()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the directory; if that is impossible, continues without the lock: whoever may read the directory can
        lock it, for as long as they like."""
        try:
            descriptor = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield
            return
        try:
            end = time.monotonic() + _MAX_LOCK_WAIT
            while time.monotonic() < end:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.005)
                except OSError:
                    break
            yield
        finally:
            os.close(descriptor)

    def write(self) -> None:
        """Writes the number of this process. Raises ConfigError."""
        directory, name = os.path.split(self.path)
        beside = os.path.join(directory, f".{name}.{os.getpid()}")
        try:
            try:
                # In a container each start has the same number, and a killed process may have left its temporary file.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(beside)
                try:
                    self._fill(beside, os.O_EXCL)
                    os.replace(beside, self.path)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.unlink(beside)
                    raise
            except PermissionError:
                # After a change of user the file is ours, and the directory still root's.
                if not os.access(self.path, os.W_OK):
                    raise
                self._fill(self.path, os.O_TRUNC)
        except OSError as error:
            raise ConfigError(f"--pidfile {self.path}: {_remedy(error, directory)}") from None

    def remove(self) -> None:
        """Removes the file if it names this process; where that is not allowed, empties it."""
        with contextlib.suppress(OSError):
            if self._number() != os.getpid():
                return
            try:
                os.unlink(self.path)
            except PermissionError:
                os.truncate(self.path, 0)

    def _fill(self, path: str, how: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"%d\n" % os.getpid())

    def _number(self) -> int | None:
        """The number in the file; None when something else is in it. Raises OSError."""
        with open(self.path, "rb") as file:
            text = file.read(32).strip()
        return int(text) if text.isdigit() and int(text) > 0 else None


@contextlib.contextmanager
def pid_file(path: str | None) -> Iterator[list[str]]:
    """Keeps the file while a server without a master runs. The context is a list of its path, empty without a file.

    Raises ConfigError.
    """
    if path is None:
        yield []
        return
    file = PidFile(path)
    file.claim()
    try:
        yield [file.path]
    finally:
        file.remove()


def _remedy(error: OSError, directory: str) -> str:
    if error.errno == errno.ENOENT and os.path.isdir(directory):
        return f"the file system of {directory} does not accept new files; choose another directory"
    if error.errno == errno.ENOENT:
        return f"the directory {directory} does not exist; create it (systemd: RuntimeDirectory=)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to create a file in {directory}; choose another directory, or change its owner"
    return error.strerror or str(error)


def _lives(pid: int, since: float) -> bool:
    """Whether the process lives, and was started before `since`, when the file was written.

    Otherwise the number was given to another process since.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the state is field 3, the start field 22, proc(5).
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] != b"Z" and age + 2.0 >= time.time() - since
