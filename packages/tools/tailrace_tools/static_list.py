"""What `tailrace static list` prints: which URL is answered with which static file, and with which fields.

What is in the folders is found here. The core says of each file whether it would serve it, and with which type and
Cache-Control.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_from_bytes

from tailrace.cli.server_settings import ServerSettings
from tailrace.commands import static_codings, static_headers, static_refusal

SERVED: Final = "served"
REFUSED: Final = "refused"
HIDDEN: Final = "hidden"
REPEATED: Final = "repeated"
UNKNOWN: Final = "unknown"
REDIRECTED: Final = "redirected"
FALLBACK: Final = "fallback"
ABSENT: Final = "absent"
# In the order in which they are counted.
_STATUSES: Final = (SERVED, REDIRECTED, FALLBACK, ABSENT, REFUSED, HIDDEN, REPEATED, UNKNOWN)
# What the core says of a file that it does not serve.
_REASONS: Final = {
    "control": "its name contains a control character",
    "dot": "its name begins with a dot",
    "link": "a symbolic link that leaves the folder or begins with a slash, or too many links (--static-symlinks)",
    "long": "its path is too long",
    "missing": "a broken symbolic link",
    "octets": "its name is not UTF-8",
    "permission": "this user cannot read it",
    "separator": "its name contains a backslash",
    "special": "not a regular file",
}
_NEVER: Final = {"link": "a symbolic link (--static-symlinks)"}
# By the status of `--static-fallback`.
_FALLBACKS: Final = {
    "200": (FALLBACK, "missing files whose name has no extension (--static-fallback), with status 200"),
    "404": (ABSENT, "missing files (--static-fallback), with status 404"),
}
# The names of compressed siblings, by coding.
_SIBLINGS: Final = {"br": ".br", "zstd": ".zst", "gzip": ".gz"}
# Characters that a URL may have in its path, beside those that are never escaped.
_IN_PATHS: Final = "/:@!$&'()*+,;=~"


@dataclass(frozen=True)
class Row:
    """A file, and the URL under which a client finds it.

    path: of the URL, decoded. status: SERVED, REFUSED, HIDDEN by another folder, or REPEATED: a link to a folder around
    it, whose files are also served below this path, or UNKNOWN: a folder that this user may not list. For what is no
    file of its own: REDIRECTED to the path with a slash; FALLBACK and ABSENT: what is
    sent for paths that the folder does not have, with the status 200 or 404. reason: why it is not SERVED.
    headers: the fields that follow from the file. codings: the lengths of its compressed siblings by their coding.
    compressed: the codings in which the server compresses it when clients want them, unless it hardly becomes smaller.
    """

    path: str
    file: str
    status: str = SERVED
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    codings: Mapping[str, int] = field(default_factory=dict)
    compressed: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The path as a client sends it."""
        return _quoted(self.path)


def _quoted(path: str) -> str:
    return quote_from_bytes(os.fsencode(path), safe=_IN_PATHS)


def rows(settings: ServerSettings, pattern: str | None = None) -> list[Row]:
    """All files of the folders, by URL. pattern: only these, a pattern as of `--static-cache`.

    settings: with absolute folders.
    """
    fits = _matcher(pattern)
    found = [row for mount in settings.static_mounts for row in _Mount(mount, settings).rows()]
    return sorted((row for row in found if fits(row.path)), key=lambda row: (row.path, row.file))


class _Mount:
    """The files of one folder."""

    def __init__(self, mount: tuple[str, str, bool], settings: ServerSettings) -> None:
        self._prefix, self._folder, self._is_overlay = mount
        self._settings = settings
        self._core = settings.core()
        # Longest first: that folder answers.
        others = (prefix for prefix, _ in settings.static if len(prefix) > len(self._prefix))
        self._nearer = sorted(others, key=len, reverse=True)

    def rows(self) -> Iterator[Row]:
        """Each file, each folder that is answered, and what stands for paths that the folder does not have."""
        yield from self._of_folder("", (os.path.realpath(self._folder),))
        if not self._is_overlay:
            yield from self._of_other_paths()

    def _of_other_paths(self) -> Iterator[Row]:
        for code, name in self._settings.static_fallback:
            status, why = _FALLBACKS[code]
            # As the core, which sends it also if its name begins with a dot.
            if os.path.isfile(file := os.path.join(self._folder, name)) and (
                self._refusal(name) in ("", _REASONS["dot"])
            ):
                headers = static_headers(self._core, f"{self._prefix}/{name}")
                if status == ABSENT:
                    headers["Cache-Control"] = "no-store"
                yield Row(f"{self._prefix}/*", file, status, why, headers)

    def _of_folder(self, below: str, parents: tuple[str, ...]) -> Iterator[Row]:
        """below: the path of a folder below that of the mount, with a slash at its end. parents: it and the folders
        around it, without links."""
        try:
            with os.scandir(os.path.join(self._folder, below)) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            yield self._not_served(below, f"cannot list its files: {error.strerror}", UNKNOWN)
            return
        files: dict[str, os.stat_result] = {}
        for entry in entries:
            path = below + entry.name
            try:
                if reason := self._refusal(path):
                    yield self._not_served(path, reason)
                elif not entry.is_dir():
                    files[entry.name] = os.stat(entry.path)
                elif (real := os.path.realpath(entry.path)) in parents:
                    yield self._not_served(path, "a link to a folder that contains it", REPEATED)
                else:
                    yield from self._of_folder(f"{path}/", (*parents, real))
            except OSError as error:  # it was removed meanwhile
                yield self._not_served(path, str(error.strerror))
        for name in files:
            yield self._file(below + name, below, name, files)
        if not self._is_overlay:
            yield from self._of_path(below, files)

    def _of_path(self, below: str, files: Mapping[str, os.stat_result]) -> Iterator[Row]:
        """What the path of a folder itself is answered with. files: those of the folder."""
        index = [name for name in self._settings.static_index if name in files]
        if not index:
            return
        yield self._file(below, below, index[0], files)
        path = f"{self._prefix}/{below}".rstrip("/")
        if path and self._nearer_than(path) is None:
            yield Row(path, os.path.join(self._folder, below), REDIRECTED, f"to {_quoted(path)}/")

    def _nearer_than(self, path: str) -> str | None:
        """The longer path of another folder that answers this one."""
        return next((prefix for prefix in self._nearer if path == prefix or path.startswith(f"{prefix}/")), None)

    def _refusal(self, path: str) -> str:
        """Why the core does not serve this; empty: it does."""
        said = static_refusal(self._core, self._folder, f"/{_quoted(path)}")
        never = _NEVER if self._settings.static_symlinks == "never" else {}
        return "" if said is None else never.get(said) or _REASONS.get(said, said)

    def _file(self, path: str, below: str, name: str, files: Mapping[str, os.stat_result]) -> Row:
        """path: of the URL, below that of the mount; below, name: the folder of the file, and its name. files: those of
        the folder."""
        url = f"{self._prefix}/{path}"
        if (prefix := self._nearer_than(url)) is not None:
            return self._not_served(path, f"the folder of {prefix} takes precedence", HIDDEN, below + name)
        headers = static_headers(self._core, f"{self._prefix}/{below}{name}")
        length = str(files[name].st_size)
        headers = {"Content-Type": headers.pop("Content-Type"), "Content-Length": length, **headers}
        codings = {
            coding: sibling.st_size
            for coding, suffix in _SIBLINGS.items()
            # One that is older than the file is not sent.
            if (sibling := files.get(name + suffix)) and int(sibling.st_mtime) >= int(files[name].st_mtime)
        }
        made = static_codings(self._core, name, files[name].st_size)
        compressed = tuple(coding for coding in made if coding not in codings)
        return Row(url, os.path.join(self._folder, below, name), SERVED, "", headers, codings, compressed)

    def _not_served(self, path: str, reason: str, status: str = REFUSED, file: str | None = None) -> Row:
        full = os.path.join(self._folder, path if file is None else file)
        return Row(f"{self._prefix}/{path}", full, status, reason)


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """A function that tells whether a path fits."""
    if pattern is None:
        return lambda path: True
    if "*" not in pattern:
        bare = pattern.rstrip("/")
        if pattern.startswith("/"):
            return lambda path: path in (pattern, bare) or path.startswith(f"{bare}/")
        return lambda path: path.rpartition("/")[2] == pattern
    whole = re.compile(".*".join(map(re.escape, re.split(r"\*+", pattern))), re.DOTALL)
    if pattern.startswith("/"):
        return lambda path: whole.fullmatch(path) is not None
    return lambda path: whole.fullmatch(path.rpartition("/")[2]) is not None


def as_json(found: list[Row]) -> str:
    """A JSON list with an object for each row."""
    shown: list[dict[str, object]] = []
    for row in found:
        entry: dict[str, object] = {"url": row.url, "file": row.file, "status": row.status}
        if row.status == SERVED:
            entry |= {"headers": row.headers, "codings": row.codings, "compressed": row.compressed}
        else:
            entry["reason"] = row.reason
            if row.headers:
                entry["headers"] = row.headers
        shown.append(entry)
    return json.dumps(shown, indent=2)


def as_text(found: list[Row], directory: str) -> str:
    """A line for each row. directory: files below it are shown by their path from there."""
    lines = [("URL", "FILE", "LENGTH", "TYPE", "CACHE-CONTROL", "CODINGS")]
    for row in found:
        file = os.path.relpath(row.file, directory) if row.file.startswith(f"{directory}/") else row.file
        file = "".join(each if each.isprintable() else f"\\x{ord(each) & 0xFF:02x}" for each in file)
        if row.status == SERVED:
            fields = row.headers
            rest = (fields["Content-Length"], fields["Content-Type"], fields.get("Cache-Control", "-"))
            codings = [*row.codings, *(f"{coding} (--compress)" for coding in row.compressed)]
            lines.append((row.url, file, *rest, ", ".join(codings) or "-"))
        else:
            lines.append((row.url, file, f"{row.status}: {row.reason}", "", "", ""))
    # What is not served needs one wide cell, which is none of a column.
    table = [line for line in lines if line[3]]
    widths = [max(len(line[place]) for line in (lines if place < 2 else table)) for place in range(6)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    counts = {status: sum(row.status == status for row in found) for status in _STATUSES}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count or status == SERVED)
    return "\n".join([*shown, "", f"{told}. Each served file has X-Content-Type-Options: nosniff."])
