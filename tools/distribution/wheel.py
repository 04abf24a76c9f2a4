"""A wheel: what must be in it and what must not, by its name, its files, its metadata and its extension."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from distribution import elf

# Bytes; far more than a wheel has, but less than one with debugging information.
LIMIT: Final = 6_000_000
_NAME: Final = re.compile(r"tailrace-(?P<version>[^-]+)-cp(?P<python>3\d+)-cp(?P=python)-(?P<platform>\S+)\.whl")
_PLATFORM: Final = re.compile(r"(?:many|musl)linux_(\d+)_(\d+)_")
# Extras that were never meant for users.
_INTERNAL: Final = frozenset({"test", "lint", "build", "release", "audit"})


class Wheel:
    """An open wheel. `machine` has the directories of the machine that built it, which no file may name."""

    def __init__(self, path: Path, archive: ZipFile, version: str, machine: tuple[str, ...]) -> None:
        self._path, self._archive, self._version, self._machine = path, archive, version, machine
        self._names = archive.namelist()
        self._information = f"tailrace-{version}.dist-info"

    @staticmethod
    def problems(path: Path, version: str, probes: set[str], machine: tuple[str, ...]) -> list[str]:
        """What is wrong with the wheel at `path`, one sentence each; empty if it can be published."""
        try:
            with ZipFile(path) as archive:
                return list(Wheel(path, archive, version, machine)._all(probes))
        except BadZipFile as error:
            return [f"no zip file: {error}"]

    def _all(self, probes: set[str]) -> Iterator[str]:
        if (size := self._path.stat().st_size) >= LIMIT:
            yield f"{size:,} bytes; the limit is {LIMIT:,}"
        named = _NAME.fullmatch(self._path.name)
        if named is None or named["version"] != self._version:
            yield f"the name is not that of a wheel of Tailrace {self._version} for one CPython"
            return
        if f"{self._information}/METADATA" not in self._names:
            yield f"there is no {self._information}/METADATA"
            return
        yield from metadata_problems(self._archive.read(f"{self._information}/METADATA"), self._version)
        yield from self._files()
        yield from self._record()
        yield from self._sbom()
        yield from self._extension(named["python"], named["platform"], probes)

    def _files(self) -> Iterator[str]:
        for name in ("licenses/LICENSE", "licenses/THIRD-PARTY.txt", "entry_points.txt", "RECORD", "WHEEL"):
            if f"{self._information}/{name}" not in self._names:
                yield f"there is no {self._information}/{name}"
        for name in ("tailrace/py.typed", "tailrace/_tailrace.pyi", "tailrace/__init__.py"):
            if name not in self._names:
                yield f"there is no {name}"
        for name in self._names:
            if not name.startswith(("tailrace/", f"{self._information}/")) or "__pycache__" in name:
                yield f"{name} does not belong into it"
        for name in self._names:
            content = self._archive.read(name)
            for directory in self._machine:
                if directory.encode() in content:
                    yield f"{name} names {directory}, a directory of the machine that built it"

    def _record(self) -> Iterator[str]:
        """Installers compare the files with the digests in RECORD."""
        if f"{self._information}/RECORD" not in self._names:
            return
        lines = self._archive.read(f"{self._information}/RECORD").decode().splitlines()
        recorded = {row[0]: row[1:] for row in csv.reader(lines) if row}
        for name in self._names:
            if name.endswith(("/RECORD", "/")):
                continue
            content = self._archive.read(name)
            if recorded.get(name) != [digest(content), str(len(content))]:
                yield f"RECORD has another digest or size of {name}, or none"

    def _sbom(self) -> Iterator[str]:
        found = [name for name in self._names if name.startswith(f"{self._information}/sboms/")]
        if not found:
            yield f"there is no SBOM in {self._information}/sboms/"
        for name in found:
            yield from (f"{name}: {said}" for said in sbom_problems(self._archive.read(name), self._version))

    def _extension(self, python: str, platform: str, probes: set[str]) -> Iterator[str]:
        libraries = [name for name in self._names if name.endswith(".so") or ".so." in name]
        if len(libraries) != 1 or not libraries[0].startswith(f"tailrace/_tailrace.cpython-{python}-"):
            yield f"its shared libraries are {libraries or 'none'}, not one _tailrace for CPython {python}"
            return
        wanted = _PLATFORM.search(platform)
        if wanted is None:
            yield f"the platform {platform} is neither manylinux nor musllinux: package indexes refuse it"
        with tempfile.TemporaryDirectory() as directory:
            library = Path(self._archive.extract(libraries[0], directory))
            sections = elf.sections(library)
            if not sections:
                yield f"{libraries[0]} is no ELF file"
                return
            if left := sorted(name for name in sections if name.startswith(".debug") or name == ".symtab"):
                yield f"{libraries[0]} is not stripped: it has {', '.join(left)}"
            if (there := elf.probes(library)) != probes:
                yield f"{libraries[0]} has not the probes of the sources, but for {sorted(there ^ probes)}"
            needed = elf.newest_glibc(library)
            if wanted and platform.startswith("manylinux") and needed > (int(wanted[1]), int(wanted[2])):
                yield f"{libraries[0]} needs glibc {needed[0]}.{needed[1]}, and the name says {platform}"


def metadata_problems(content: bytes, version: str) -> Iterator[str]:
    """What is wrong with METADATA of a wheel, or PKG-INFO of a source distribution."""
    metadata: Message = BytesParser().parsebytes(content)
    expected = {"Name": "tailrace", "Version": version, "License-Expression": "MIT"}
    for field, value in expected.items():
        if metadata[field] != value:
            yield f"the metadata has {field}: {metadata[field]}, not {value}"
    if (licences := metadata.get_all("License-File", [])) != ["LICENSE", "THIRD-PARTY.txt"]:
        yield f"the metadata has the License-File {', '.join(licences) or 'none'}, not LICENSE and THIRD-PARTY.txt"
    if _numbers(metadata["Metadata-Version"]) < (2, 4):
        yield f"the metadata has the version {metadata['Metadata-Version']}, and PEP 639 needs 2.4"
    # A package index shows the description on a page of its own.
    if relative := re.findall(r"\]\((?!https://)([^)]*)\)", str(metadata.get_payload())):
        yield f"the description links to {relative[0]}, which no package index has; run tools/description.py"
    for field in ("Requires-Python", "Summary", "Keywords", "Project-URL"):
        if not metadata[field]:
            yield f"the metadata has no {field}"
    if old := [each for each in metadata.get_all("Classifier", []) if each.startswith("License ::")]:
        yield f"{old[0]} beside License-Expression is refused by package indexes (PEP 639)"
    if extras := _INTERNAL & set(metadata.get_all("Provides-Extra", [])):
        yield f"{', '.join(sorted(extras))} is for contributors: a dependency group, not an extra"


def sbom_problems(content: bytes, version: str) -> Iterator[str]:
    """What is wrong with an SBOM; its schema is checked elsewhere."""
    try:
        document: dict[str, Any] = json.loads(content)
        subject = document["metadata"]["component"]
        names = {each["name"] for each in document["components"]}
        if document["bomFormat"] != "CycloneDX":
            yield f"it is {document['bomFormat']}, not CycloneDX"
        if subject["version"] != version:
            yield f"it describes {subject['name']} {subject['version']}, not {version}"
    except (ValueError, KeyError, TypeError) as error:
        yield f"no SBOM of CycloneDX: {type(error).__name__}: {error}"
        return
    for name in ("tailrace-http", "tailrace-server", "pyo3", "rustix"):
        if name not in names:
            yield f"it does not name {name}"


def digest(content: bytes) -> str:
    """As RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version or ""))
