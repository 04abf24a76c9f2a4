"""Folders of static files for tests, servers that serve them, and questions to such servers."""

import os
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from harness.server import Server
from harness.wire import Client, Response

LARGE = 300_000
# Long enough ago that a file is not taken for one that is being written.
OLD = 1_700_000_000


def pattern(size: int, seed: int = 0) -> bytes:
    """So many bytes in which no two places look alike for long."""
    return random.Random(seed).randbytes(size // 2 + 1).hex().encode()[:size]


def write(path: Path, content: bytes = b"", modified: float | None = OLD) -> Path:
    """A file, with its folders. modified: its time of change; None: now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if modified is not None:
        os.utime(path, (modified, modified))
    return path


def tree(folder: Path, files: dict[str, bytes]) -> Path:
    """A folder with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write(folder / name, content)
    return folder


def replace(path: Path, content: bytes) -> None:
    """Gives the file another content as deployments do: by the renaming of another file."""
    other = path.with_name(path.name + ".new~")
    other.write_bytes(content)
    other.rename(path)


def serving(folder: Path, *arguments: str, prefix: str = "/assets", app: str = "echo:app", **options: object) -> Server:
    """A server of the folder, and of an application that responds with the request."""
    return Server(app, "--static", f"{prefix}={folder}", *arguments, **options)


def overlaying(folder: Path, *arguments: str, app: str = "echo:app", **options: object) -> Server:
    """A server whose application is behind the files of the folder."""
    return Server(app, "--overlay", str(folder), *arguments, **options)


def request(target: str, *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    """A request that keeps the connection."""
    return "\r\n".join([f"{method} {target} HTTP/{version}", "Host: test", *fields, "", ""]).encode("latin-1")


def ask(client: Client, target: str, *fields: str, method: str = "GET") -> Response:
    """One request and its response."""
    return client.ask(request(target, *fields, method=method), method)


def slow(server: Server, target: str, taken: int = 1000, buffer: int = 65_536) -> Client:
    """A client that has asked and takes so many bytes for now. buffer: what its socket has room for."""
    client = server.client(30)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.send(request(target))
    client.buffer = client.sock.recv(taken) if taken else b""
    return client


def anonymous_memory(server: Server) -> int:
    """Bytes of the process that are of no file."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def fields_of(response: Response, *but: str) -> dict[str, str]:
    """The fields of a response, without these and without Date."""
    return {name.lower(): value for name, value in response.fields if name.lower() not in ("date", *but)}


def expanded(target: str) -> str:
    """`{3*a}` is `aaa`. What is in braces of another form stays."""
    start = target.rfind("{")
    if start < 0 or "*" not in target[start:]:
        return target
    end = target.index("}", start)
    count, text = target[start + 1 : end].split("*", 1)
    return expanded(target[:start] + int(count) * text + target[end + 1 :])


def all_of(paths: Iterable[Path]) -> int:
    """The sum of the sizes of files."""
    return sum(path.stat().st_size for path in paths)
