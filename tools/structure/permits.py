"""What only certain folders may do: `unsafe`, system calls, reading a clock, probes, Python's C API, forks, signal
handlers.

A permit is a folder (or a file), never a list of exceptions. Tests and examples may do anything. What talks to the
operating system is in `os/`, also for `crates/wsgi`, whose `ffi/` calls CPython and nothing else. `crates/load` is a
client, which shares no code with the server that it measures. The macros of the crate `probe` are assembly, which is
`unsafe`, so one file names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from structure.rust import Manifest
from structure.sources import Use

# Lowest first: a crate may use those before it.
CRATE_ORDER: Final = ("tailrace-http", "tailrace-tls", "tailrace-server", "tailrace-load", "tailrace-wsgi")


class Permit(NamedTuple):
    """Who may do something."""

    what: str
    language: str
    is_meant: Callable[[str], bool]
    folders: tuple[str, ...]

    def is_broken_by(self, use: Use) -> bool:
        """Whether the use is meant, and stands elsewhere."""
        return use.file.endswith(self.language) and self.is_meant(use.text) and not use.file.startswith(self.folders)

    @property
    def rule(self) -> str:
        """The permit in words."""
        return f"{self.what} only in {' and '.join(self.folders)}" if self.folders else f"{self.what} nowhere"


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
    Permit("unsafe", ".rs", "unsafe".__eq__, ("crates/server/src/os/", "crates/wsgi/src/ffi/")),
    Permit(
        "system calls",
        ".rs",
        makes_system_call,
        ("crates/server/src/os/", "crates/load/src/", "crates/tls/src/files.rs"),
    ),
    Permit(
        "the clock",
        ".rs",
        reads_clock,
        (
            *("crates/server/src/os/clock.rs", "crates/server/src/os/clock/"),
            *("crates/load/src/", "crates/tls/src/files.rs"),
        ),
    ),
    Permit("probes", ".rs", lambda path: path.startswith("probe::"), ("crates/server/src/observe/probes.rs",)),
    Permit("pyo3", ".rs", "pyo3".__eq__, ("crates/wsgi/",)),
    Permit("ctypes", ".py", lambda path: path.partition(".")[0] == "ctypes", ()),
    Permit("os.fork", ".py", "os.fork".__eq__, ("tailrace/master/", "tailrace/worker/")),
    Permit("signal.signal", ".py", "signal.signal".__eq__, ("tailrace/system/", "tailrace/worker/")),
)


def broken(uses: list[Use]) -> list[tuple[Permit, Use]]:
    """Each use that no permit allows, once a line."""
    return [(permit, use) for permit in PERMITS for use in sorted(set(uses)) if permit.is_broken_by(use)]


def wrong_dependencies(manifests: list[Manifest]) -> list[str]:
    """What the manifests say against the order of the crates."""
    found = []
    for manifest in manifests:
        if manifest.package not in CRATE_ORDER:
            found.append(f"{manifest.file}: give {manifest.package} a place in CRATE_ORDER, tools/structure/permits.py")
            continue
        lower = CRATE_ORDER[: CRATE_ORDER.index(manifest.package)]
        for name in sorted(manifest.dependencies):
            if name in CRATE_ORDER and name not in lower:
                found.append(f"{manifest.file}: {manifest.package} must not depend on {name}")
            if name.startswith("pyo3") and not manifest.file.startswith("crates/wsgi/"):
                found.append(f"{manifest.file}: only crates/wsgi may depend on {name}")
    return found
