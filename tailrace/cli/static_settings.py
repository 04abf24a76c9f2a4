"""Which settings of static files cannot do what they say, as lines of the log."""

from __future__ import annotations

from typing import Final

from tailrace.cli.options import BY_NAME
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.static_values import FINGERPRINTED

_REMEDY: Final = "name a folder, as in --static /assets=./dist"


def without_effect(settings: ServerSettings) -> list[str]:
    """A line for each reason."""
    lines = []
    # --static-fallback without --static is an error.
    for names, needed in (
        (("static_index",), ("static",)),
        (("static_cache", "static_memory"), ("static", "overlay")),
        (("mime", "static_symlinks"), ("static", "overlay", "sendfile_root")),
    ):
        flags = [BY_NAME[name].flag for name in names if getattr(settings, name) != BY_NAME[name].default]
        if flags and not any(getattr(settings, name) for name in needed):
            have = "has" if len(flags) == 1 else "have"
            missing = " or ".join(BY_NAME[name].flag for name in needed)
            lines.append(f"{', '.join(flags)} {have} no effect without {missing}: {_REMEDY}")
    lines += [
        f"--static /={folder}: the application is never called, because this folder answers every path; use --overlay "
        f"{folder}, which leaves missing files to the application, or a path, as in --static /assets={folder}"
        for prefix, folder in settings.static
        if not prefix
    ]
    mounts = [f"{prefix}/" for prefix, _, _ in settings.static_mounts]
    lines += [
        f"--static-cache {pattern}=...: no file has such a path, because the folders are served below "
        f"{', '.join(mounts)}; a pattern is a URL path, or a file name such as *.html"
        for pattern, _ in settings.static_cache
        if mounts and not any(_fits(pattern, mount) for mount in mounts)
    ]
    return lines


def _fits(pattern: str, mount: str) -> bool:
    """Whether a path below the mount, which ends with a slash, may fit the pattern."""
    if pattern == FINGERPRINTED or not pattern.startswith("/"):
        return True
    start, star, _ = pattern.partition("*")
    if not star:
        start = f"{start.rstrip('/')}/"
    return mount.startswith(start) or start.startswith(mount)
