"""The bytes that the applications deliver, and the files that hold them; the same on every machine.

The sizes come from real responses: a presentation, a word list, a page.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

DECK_BYTES = 688_128
# The beginning of the same bytes: 25 blocks of 4 KiB.
PART_BYTES = 102_400
WORDS_BYTES = 2_493_109
PAGE_BYTES = 21_324
UPLOAD_BYTES = 20_000_000
# What upload.lua sends.
FORM_BYTES = 100_000
# What each of a crowd of slow readers asks for.
CROWD_BYTES = 10_000_000
# Larger than any server keeps in memory. The file is sparse: it takes no room on the disk.
FLAT_BYTES = 2 * 1024**3

# Under this name a measured server finds the files beside the package.
BESIDE = "served-files"


def _directory() -> Path:
    """Where the files are: beside the name under which a server imports this package, else in the user's cache."""
    beside = Path(__file__).absolute().parent.parent / BESIDE
    return beside if beside.exists() else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tailrace"


DIRECTORY = _directory()


def deck() -> bytes:
    return random.Random("deck").randbytes(DECK_BYTES)


def words() -> bytes:
    """In blocks of 128 bytes these are 19,478 blocks."""
    chance = random.Random("words")
    line = bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=8191)) + b"\n"
    return (line * (WORDS_BYTES // len(line) + 1))[:WORDS_BYTES]


def page() -> bytes:
    head = b"<!doctype html><meta charset=utf-8><title>A page</title><p>"
    return head + words()[: PAGE_BYTES - len(head)]


def make() -> Path:
    """Writes the files that are missing and returns their directory, readable by everyone (Apache drops its rights)."""
    DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    contents: dict[str, Callable[[], bytes]] = {
        "deck": deck,
        "part": lambda: deck()[:PART_BYTES],
        "page": page,
        "words": words,
        "upload": lambda: bytes(UPLOAD_BYTES),
        "crowd": lambda: bytes(CROWD_BYTES),
        "pong": lambda: b"pong",
    }
    for name, content in contents.items():
        path = DIRECTORY / name
        if not path.exists():
            # Another process may write it, too.
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(content())
            fresh.replace(path)
    flat = DIRECTORY / "flat"
    if not flat.exists() or flat.stat().st_size != FLAT_BYTES:
        flat.touch()
        os.truncate(flat, FLAT_BYTES)
    return DIRECTORY
