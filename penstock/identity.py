"""Who the process is: user and group, the pid file, the title that `ps` shows.

The whole server changes its user, master and workers alike, once the sockets are bound: nothing of the application,
of its hooks or of its requests is ever seen by the administrator's rights. What was made before as the administrator
(the files of UNIX sockets, the pid file, a new access log) is given to the new user.

Only the main thread calls this, the master's before it forks and a worker's before it serves.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import grp
import os
import pwd
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError

_SET_NAME: Final = 15  # PR_SET_NAME, prctl(2)
_NAME_LIMIT: Final = 15  # bytes of a thread's name, without the final NUL


@dataclass(frozen=True)
class Identity:
    """The user and group to become. `name` and `home` are those of the user database; empty when it has no entry."""

    uid: int
    gid: int
    name: str = ""
    home: str = ""

    @property
    def is_current(self) -> bool:
        """True when the process already is this user, with this group."""
        return os.getresuid() == (self.uid,) * 3 and os.getresgid() == (self.gid,) * 3

    def own(self, paths: Iterable[str]) -> None:
        """Gives files to the user, as far as that is allowed and they exist."""
        if not self.is_current:
            for path in paths:
                with contextlib.suppress(OSError):
                    os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def own_log(self, path: str | None) -> None:
        """Makes a log file that is not there yet, for the user: the directory may be the administrator's."""
        if path in (None, "-") or self.is_current:
            return
        assert path is not None
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            os.fchown(descriptor, self.uid, self.gid)
            os.close(descriptor)

    def become(self) -> None:
        """Changes user, group and supplementary groups for good, and HOME, USER and LOGNAME. Raises ConfigError."""
        if not self.is_current:
            try:
                if self.name:
                    os.initgroups(self.name, self.gid)
                else:
                    os.setgroups([self.gid])
                os.setresgid(self.gid, self.gid, self.gid)
                os.setresuid(self.uid, self.uid, self.uid)
            except PermissionError:
                raise ConfigError(
                    f"cannot become user {self.name or self.uid}, group {self.gid}: only the administrator may, and "
                    f"this is user {_user_name(os.geteuid())}; start as root, or leave --user and --group out "
                    "(systemd: User=, Group=)"
                ) from None
            except OSError as error:
                raise ConfigError(
                    f"cannot become user {self.name or self.uid}, group {self.gid}: {error.strerror}"
                ) from None
        if self.name:
            os.environ.update(HOME=self.home, USER=self.name, LOGNAME=self.name)

    def check_interpreter(self) -> None:
        """Raises ConfigError when this user, having become it, cannot read the Python that runs."""
        if not os.access(os.__file__, os.R_OK):
            raise ConfigError(
                f"user {self.name or self.uid} cannot read Python's own modules in {os.path.dirname(os.__file__)}; "
                "install Python and the application where every user can read them"
            )


def identity(user: str | None, group: str | None) -> Identity | None:
    """The identity that `--user` and `--group` ask for, as names or numbers; None when neither is given.

    The group of a user without `--group` is the one of the user database. Raises ConfigError.
    """
    if user is None and group is None:
        return None
    entry = None
    if user is None:
        uid = os.geteuid()
    elif user.isascii() and user.isdigit():
        uid = int(user)
        with contextlib.suppress(KeyError, OverflowError):
            entry = pwd.getpwuid(uid)
    else:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise ConfigError(f"user {user!r}: there is no such user; `getent passwd` lists them") from None
        uid = entry.pw_uid
    if group is not None:
        gid = _group_number(group)
    elif entry is not None:
        gid = entry.pw_gid
    else:
        raise ConfigError(f"user {user}: the user database has no entry for it, so --group is needed too")
    return Identity(uid, gid, entry.pw_name, entry.pw_dir) if entry else Identity(uid, gid)


def _group_number(group: str) -> int:
    if group.isascii() and group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"group {group!r}: there is no such group; `getent group` lists them") from None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class PidFile:
    """The file that holds the number of the master's process: there is one master for one file.

    It is written in one step, so that a reader finds a whole number or no file. Only the process whose number is in it
    removes it: a successor has written its own.
    """

    def __init__(self, path: str) -> None:
        # Absolute: the application may change the directory.
        self.path = os.path.abspath(path)

    def check(self, predecessor: int | None = None) -> None:
        """Raises ConfigError when another living process has the file; `predecessor` is allowed to."""
        pid = self._read()
        if pid is not None and pid not in (os.getpid(), predecessor) and _lives(pid, os.stat(self.path).st_mtime):
            raise ConfigError(
                f"pidfile {self.path}: process {pid} runs already; stop it (`kill {pid}`), or choose another --pidfile"
            )

    def write(self) -> None:
        """Writes the number of this process. Raises ConfigError."""
        directory, name = os.path.split(self.path)
        beside = os.path.join(directory, f".{name}.{os.getpid()}")
        try:
            try:
                # In a container each start has the same number, and one that was killed here may have left its file.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(beside)
                self._fill(beside, os.O_EXCL)
                os.replace(beside, self.path)
            except PermissionError:
                # The directory is the administrator's and the file ours: after a change of user.
                if not os.access(self.path, os.W_OK):
                    raise
                self._fill(self.path, os.O_TRUNC)
        except OSError as error:
            raise ConfigError(f"pidfile {self.path}: {_remedy(error, directory)}") from None

    def remove(self) -> None:
        """Removes the file if it names this process; where that is not allowed, empties it."""
        if self._read() != os.getpid():
            return
        try:
            os.unlink(self.path)
        except PermissionError:
            with contextlib.suppress(OSError):
                os.truncate(self.path, 0)
        except OSError:
            pass

    def _fill(self, path: str, how: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"%d\n" % os.getpid())

    def _read(self) -> int | None:
        """The number in the file; None when there is no file, or something else in it."""
        try:
            with open(self.path, "rb") as file:
                text = file.read(32).strip()
        except OSError:
            return None
        return int(text) if text.isdigit() and int(text) > 0 else None


def _remedy(error: OSError, directory: str) -> str:
    if error.errno == errno.ENOENT:
        return f"the directory {directory} does not exist; create it (systemd: RuntimeDirectory=)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to create a file in {directory}; choose another directory, or change its owner"
    return error.strerror or str(error)


def _lives(pid: int, since: float) -> bool:
    """Whether the process `pid` lives and is as old as a file that was written at `since`: numbers are used again."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the start is field 22, and the state field 3, proc(5).
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] != b"Z" and age + 2.0 >= time.time() - since


def set_title(role: str, application: str) -> None:
    """What `ps` shows: with setproctitle (the extra `title`) `penstock: master [app:app]`; without it only the short
    name changes, the one of `ps -o comm` and `top`: `penstock-master`, `penstock-w1`."""
    try:
        from setproctitle import setproctitle
    except ImportError:
        name = f"penstock-{role}".replace("worker ", "w").encode()[:_NAME_LIMIT]
        ctypes.CDLL(None).prctl(_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)
    else:
        setproctitle(f"penstock: {role} [{application}]")
