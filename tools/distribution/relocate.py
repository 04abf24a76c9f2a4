"""Takes the directories of the machine out of the SBOM of a wheel.

An SBOM identifies the crates of this repository by their paths. These tell others nothing, differ between two machines
that build the same wheel, and show where somebody keeps it.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from zipfile import ZipFile

from distribution.wheel import digest


def relocate(wheel: Path, root: Path, place: str) -> None:
    """Writes `place` instead of `root` in the SBOM of the wheel, and their digests in RECORD. Nothing else changes:
    neither the other files nor times, modes and order.
    """
    written = wheel.with_suffix(".new")
    with ZipFile(wheel) as old, ZipFile(written, "w") as new:
        changed: dict[str, bytes] = {}
        # RECORD is the last file, by the specification of wheels ("physically at the end").
        for each in sorted(old.infolist(), key=lambda each: each.filename.endswith(".dist-info/RECORD")):
            content = old.read(each)
            if ".dist-info/sboms/" in each.filename:
                content = changed[each.filename] = content.replace(str(root).encode(), place.encode())
            elif each.filename.endswith(".dist-info/RECORD"):
                content = _record(content, changed)
            new.writestr(each, content, each.compress_type)
    written.replace(wheel)


def _record(record: bytes, changed: dict[str, bytes]) -> bytes:
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for row in csv.reader(record.decode().splitlines()):
        content = changed.get(row[0])
        writer.writerow(row if content is None else [row[0], digest(content), str(len(content))])
    return output.getvalue().encode()
