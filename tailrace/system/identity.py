"""The user and group of the server: `--user` and `--group`.

Master and workers change their user together, once the sockets are bound. So the code of the application, its hooks and
its requests never run as root. Files that were made before (UNIX sockets, the pid file, a new access log) are given to
the new user.

Thread: the main one, the master's before it forks.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Iterable
from typing import NamedTuple

from tailrace._tailrace import log_destination_kind
from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.system.sockets import Listener


class Identity(NamedTuple):
    """The user and group to become. name, home: from the user database; empty when it has no entry for the user."""

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
        """Creates a missing log file for the user, who may not be allowed to create it in its directory. path: any
        destination of `--access-log`."""
        if path is None or self.is_current or log_destination_kind(path) != "file":
            return
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
                    f"cannot become user {self.name or self.uid}, group {self.gid}: only root can change users, and "
                    f"this is user {_user_name(os.geteuid())}; start as root, or omit --user and --group (systemd: "
                    "User=, Group=)"
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
        uid = _number("user", user)
        with contextlib.suppress(KeyError):
            entry = pwd.getpwuid(uid)
    else:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise ConfigError(f"--user {user!r}: no such user; `getent passwd` lists all users") from None
        uid = entry.pw_uid
    if group is not None:
        gid = _group_number(group)
    elif entry is not None:
        gid = entry.pw_gid
    else:
        raise ConfigError(f"--user {user}: the user database has no entry for it, so --group is needed too")
    return Identity(uid, gid, entry.pw_name, entry.pw_dir) if entry else Identity(uid, gid)


def _group_number(group: str) -> int:
    if group.isascii() and group.isdigit():
        return _number("group", group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"--group {group!r}: no such group; `getent group` lists all groups") from None


def _number(what: str, digits: str) -> int:
    # The largest stands for "unchanged" in setresuid(2).
    if len(digits) > 10 or int(digits) >= (1 << 32) - 1:
        raise ConfigError(f"{what} {digits}: the number of a {what} is at most {(1 << 32) - 2}")
    return int(digits)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def change_user(
    user: str | None, group: str | None, access_log: str | None, listeners: list[Listener], paths: list[str]
) -> None:
    """Becomes the user and group of `--user` and `--group`, and makes them the owners of files that exist
    already (sockets, pid file, logs). Raises ConfigError."""
    wanted = identity(user, group)
    if wanted is None:
        return
    changes = not wanted.is_current
    wanted.own([*paths, *log.made(), *(listener.path for listener in listeners if listener.path)])
    wanted.own_log(access_log)
    wanted.become()
    wanted.check_interpreter()
    if changes:
        log.logger.info("changed to user %s, group %d", wanted.name or wanted.uid, wanted.gid)
