"""What only certain folders may do: `unsafe`, system calls, reading a clock, probes, Python's C API.

A permit is a folder (or a file), never a list of exceptions. Tests and examples may do anything. What talks to the
operating system is in `crates/os`, but for the names below a folder of files; `ffi/` of `crates/wsgi` calls CPython and
nothing else. The macros of the crate `probe` are assembly, which is `unsafe`, so one file names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from structure.sources import Use


class Permit(NamedTuple):
    """Who may do something."""

    what: str
    is_meant: Callable[[str], bool]
    folders: tuple[str, ...]

    def is_broken_by(self, use: Use) -> bool:
        """Whether the use is meant, and stands elsewhere."""
        return self.is_meant(use.text) and not use.file.startswith(self.folders)

    @property
    def rule(self) -> str:
        """The permit in words."""
        return f"{self.what} only in {' and '.join(self.folders)}"


_STD_CALLS: Final = re.compile(
    r"std::fs::[a-z]\w*$"
    # A `File` made of a descriptor is no system call.
    r"|std::fs::(OpenOptions|DirBuilder)\b|std::fs::File::(open|create|create_new|options)$"
    r"|std::os::unix::(fs|net|process|thread)::\w"
    r"|std::net::(TcpListener|TcpStream|UdpSocket)\b"
    r"|std::process::(Command\b|[a-z]\w*$)"
)
# Modules of rustix that stand within others.
_MODULES: Final = frozenset({"epoll", "sockopt", "inotify", "ipproto"})
_C_TYPE: Final = re.compile(r"c_\w+|\w+_t|sockaddr\w*")


def makes_system_call(path: str) -> bool:
    """Functions of rustix and libc, and what std opens, connects and starts. Types and constants are no calls."""
    parts = path.split("::")
    if parts[0] == "rustix" and len(parts) > 2:
        return all(part[0].islower() for part in parts) and parts[-1] not in _MODULES
    if parts[0] == "libc" and len(parts) == 2:
        return parts[1].islower() and not _C_TYPE.fullmatch(parts[1])
    return bool(_STD_CALLS.match(path))


def reads_clock(path: str) -> bool:
    """`elapsed` reads the clock, too."""
    return path.endswith(("Instant::now", "SystemTime::now", "Instant::elapsed")) or path == ".elapsed()"


PERMITS: Final = (
    Permit("unsafe", "unsafe".__eq__, ("crates/os/", "crates/wsgi/src/ffi/")),
    Permit(
        "system calls",
        makes_system_call,
        ("crates/os/", "crates/files/src/resolve.rs", "crates/tls/src/files.rs"),
    ),
    Permit(
        "the clock",
        reads_clock,
        ("crates/os/src/clock.rs", "crates/tls/src/files.rs"),
    ),
    Permit("probes", lambda path: path.startswith("probe::"), ("crates/observe/src/probes.rs",)),
    Permit("pyo3", "pyo3".__eq__, ("crates/wsgi/",)),
)


def broken(uses: list[Use]) -> list[tuple[Permit, Use]]:
    """Each use that no permit allows, once a line."""
    return [(permit, use) for permit in PERMITS for use in sorted(set(uses)) if permit.is_broken_by(use)]
