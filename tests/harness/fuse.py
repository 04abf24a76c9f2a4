"""A file system whose files hang when a test wants them to: a small server of the kernel's FUSE, in its own process.

Its files are cold at first: the kernel has nothing of them in memory. Needs the rights to mount.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEADER = struct.Struct("<IIQQIIIHH")
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR = 1, 2, 3, 14, 15, 17, 18, 25, 26, 27
RELEASEDIR, INTERRUPT, BATCH_FORGET = 29, 36, 42
ENOENT, ENOSYS = 2, 38
OLD = 1_700_000_000


class HangingFiles:
    """Files in a folder, mounted for the length of a `with`. All contents are a repeated name, of the size given."""

    def __init__(self, folder: Path, sizes: dict[str, int]) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        try:
            self._device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            pytest.skip(f"/dev/fuse: {error}")
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"test", os.fsencode(folder), b"fuse.test", 0, options.encode()) != 0:
            os.close(self._device)
            pytest.skip(f"mounting: {os.strerror(ctypes.get_errno())}")
        names = [f"{name}={size}" for name, size in sizes.items()]
        command = [sys.executable, __file__, str(self._device), *names]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[self._device], text=True
        )
        os.close(self._device)

    def __enter__(self) -> HangingFiles:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        # MNT_FORCE: what hangs fails. MNT_DETACH: whoever has a file open does not keep it mounted.
        libc.umount2(os.fsencode(self.folder), 1)
        libc.umount2(os.fsencode(self.folder), 2)
        self._process.kill()
        self._process.communicate()

    def _tell(self, line: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def hang(self, name: str) -> None:
        """From now on reads of this file wait."""
        self._tell(f"hang {name}")

    def stop(self) -> None:
        """From now on nothing is answered: neither what a file is, nor that it is opened."""
        self._tell("stop")

    def release(self) -> None:
        """All that waits goes on."""
        self._tell("release")

    def waiting(self) -> int:
        """Reads, and other questions, that wait."""
        return int(self._tell("waiting"))

    def await_waiting(self, count: int = 1) -> None:
        """Until so many reads wait."""
        end = time.monotonic() + 10
        while self.waiting() < count:
            assert time.monotonic() < end, f"{self.waiting()} reads wait, not {count}"
            time.sleep(0.01)


def content_of(name: str, size: int) -> bytes:
    """What the file has."""
    return (name.encode() * (size // len(name) + 1))[:size]


def attributes(node: int, sizes: list[int]) -> bytes:
    """`struct fuse_attr`; node 1 is the folder."""
    mode, size = (0o040755, 0) if node == 1 else (0o100644, sizes[node - 2])
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, 0, OLD, OLD, OLD, 1, 1, 1, mode, 1, 0, 0, 0, 4096, 0)


def serve(device: int, files: dict[str, int]) -> None:
    """Answers the kernel and the test until the folder is unmounted."""
    names, sizes = list(files), list(files.values())
    hanging: set[str] = set()
    held: list[tuple[int, bytes]] = []
    stopped: list[bytes] | None = None

    def reply(unique: int, data: bytes = b"", error: int = 0) -> None:
        # It may have been interrupted meanwhile.
        with contextlib.suppress(FileNotFoundError):
            os.write(device, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)

    def handle(message: bytes) -> None:
        _, opcode, unique, node, *_ = HEADER.unpack_from(message)
        data = message[HEADER.size :]
        if opcode == INIT:
            reply(unique, struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 1, 64, 48, 65_536, 1, 0, 0, 0))
        elif opcode == LOOKUP:
            name = data.rstrip(b"\0").decode()
            if name in names:
                found = names.index(name) + 2
                reply(unique, struct.pack("<QQQQII", found, 0, 1000, 1000, 0, 0) + attributes(found, sizes))
            else:
                reply(unique, error=ENOENT)
        elif opcode == GETATTR:
            reply(unique, struct.pack("<QII", 1000, 0, 0) + attributes(node, sizes))
        elif opcode in (OPEN, OPENDIR):
            reply(unique, struct.pack("<QII", 0, 0, 0))
        elif opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", data)
            name = names[node - 2]
            part = content_of(name, sizes[node - 2])[offset : offset + size]
            if name in hanging:
                held.append((unique, part))
            else:
                reply(unique, part)
        elif opcode in (RELEASE, FLUSH, RELEASEDIR):
            reply(unique)
        elif opcode not in (FORGET, BATCH_FORGET, INTERRUPT):
            reply(unique, error=ENOSYS)

    while True:
        ready, _, _ = select.select([device, sys.stdin], [], [])
        if device in ready:
            try:
                message = os.read(device, 1 << 17)
                if stopped is None:
                    handle(message)
                else:
                    stopped.append(message)
            except OSError:
                return
        if sys.stdin in ready:
            word, _, name = sys.stdin.readline().strip().partition(" ")
            if word == "hang":
                hanging.add(name)
            elif word == "stop":
                stopped = []
            elif word == "release":
                hanging.clear()
                for message in stopped or []:
                    handle(message)
                stopped = None
                for unique, part in held:
                    reply(unique, part)
                held.clear()
            elif not word:
                return
            print(len(held) + len(stopped or []), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), {name: int(size) for name, size in (word.split("=") for word in sys.argv[2:])})
