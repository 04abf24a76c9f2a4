"""The same tests with requests on greenlets: TAILRACE_TEST_GEVENT=1 python -m pytest tests/protocol

Servers of their own process then get `--gevent`. Servers inside the test's process are served on the hub of the thread
that runs the tests, which needs a process that was patched before it imported anything: `PATCHED` starts one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .encrypted import TLS, authority

if TYPE_CHECKING:
    from .server import Server

GEVENT = bool(os.environ.get("TAILRACE_TEST_GEVENT"))

# Not the current directory: the package is where this process found it.
PATCHED = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
from gevent import monkey
monkey.patch_all()
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def as_greenlets(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a threaded server as one with greenlets has them."""
    return {("max_greenlets" if name == "threads" else name): value for name, value in options.items()}


@contextlib.contextmanager
def embedded(application: Any, **options: Any) -> Iterator[str]:
    """Serves `application` inside this process; the context is the URL."""
    import tailrace

    if TLS:
        options.setdefault("bind", "https://127.0.0.1:0")
        options |= {"certfile": str(authority().chain), "keyfile": str(authority().key)}
    if not GEVENT:
        with tailrace.serve_in_thread(application, **options) as server:
            yield server.url
        return
    import gevent.monkey

    import tailrace.gevent

    assert gevent.monkey.is_module_patched("threading"), "the hub would wait for the test, and the test for the hub"
    server = tailrace.gevent.serve(application, **as_greenlets(options))
    try:
        yield server.url
    finally:
        server.stop()
        assert server.closed


def run_patched(*arguments: str) -> list[str]:
    """The command of pytest in a patched process."""
    return [sys.executable, "-c", PATCHED, *arguments]


def on_greenlets(application: str = "srv_greenlets:app", *arguments: str, **options: object) -> Server:
    """A server process with `--gevent`."""
    from .server import Server

    return Server(application, *(() if GEVENT else ("--gevent",)), *arguments, **options)  # type: ignore[arg-type]


def record(server: Server, key: str) -> dict[str, Any]:
    """What srv_greenlets.py noted of a request."""
    return json.loads(server.get(f"/record?key={key}").body)


def dumped(server: Server) -> str:
    """The dump of this moment, in which the request that asks for it is one."""
    return json.loads(server.get("/dump").body)


def in_requests(server: Server) -> int:
    """Greenlets that run a request, but for the one that asks."""
    first = dumped(server).partition("\n")[0]
    found = re.match(r"greenlets: ([0-9]+) in requests", first)
    assert found, first
    return int(found[1]) - 1
