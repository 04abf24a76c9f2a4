"""What the tests of the server's threads, delivery and processes share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.server import APPS, Server

if str(APPS) not in sys.path:
    sys.path.append(str(APPS))

DEADLINE = 20.0


def eventually(probe: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """The first true answer of `probe`, asked again and again; fails after a generous while."""
    until = time.monotonic() + deadline
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > until:
            pytest.fail(f"{what}: not within {deadline:g} s, the last answer was {answer!r}")
        time.sleep(0.01)


def told(server: Server, target: str) -> Any:
    """What the application answers to a question, from JSON."""
    response = server.get(target)
    assert response.status == 200, response
    return json.loads(response.body)


def request(target: str, *fields: str, version: str = "1.1") -> bytes:
    """A GET request that keeps the connection."""
    return "\r\n".join([f"GET {target} HTTP/{version}", "Host: test", *fields, "", ""]).encode("latin-1")


def descriptors(server: Server) -> int:
    """Open descriptors of the process."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def resident(server: Server) -> int:
    """Bytes of the process in memory."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024
