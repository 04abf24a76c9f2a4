"""The source distribution: everything that a build needs, and nothing that was built."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from distribution.wheel import metadata_problems

_NEEDED: Final = (
    *(
        "pyproject.toml",
        "Cargo.toml",
        "Cargo.lock",
        "LICENSE",
        "THIRD-PARTY.txt",
        "tools/distribution/description.md",
        "tools/build_backend.py",
    ),
    *("crates/http/Cargo.toml", "crates/server/Cargo.toml", "crates/wsgi/build.rs"),
    *("tailrace/__init__.py", "tailrace/py.typed", "tailrace/_tailrace.pyi"),
)


def problems(path: Path, version: str) -> list[str]:
    """What is wrong with the source distribution at `path`, one sentence each."""
    return list(_all(path, version))


def _all(path: Path, version: str) -> Iterator[str]:
    root = f"tailrace-{version}"
    if path.name != f"{root}.tar.gz":
        yield f"the name is not {root}.tar.gz"
        return
    with tarfile.open(path) as archive:
        names = archive.getnames()
        for name in _NEEDED:
            if f"{root}/{name}" not in names:
                yield f"there is no {name}"
        for name in names:
            if not f"{name}/".startswith(f"{root}/") or name.endswith((".so", ".pyc")):
                yield f"{name} does not belong into it"
        information = archive.extractfile(f"{root}/PKG-INFO") if f"{root}/PKG-INFO" in names else None
        if information is None:
            yield "there is no PKG-INFO"
            return
        yield from metadata_problems(information.read(), version)
