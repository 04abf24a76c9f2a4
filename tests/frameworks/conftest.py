"""Fixtures for whole applications and whole tools: frameworks under a real `penstock`, curl, ab, wrk, and proxies in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from harness.server import Server


@pytest.fixture
def browser() -> Iterator[Callable[..., httpx.Client]]:
    """`browser(server)`: an HTTP client that keeps cookies and connections, with relative URLs, and follows nothing by itself."""
    clients: list[httpx.Client] = []

    def open_client(server: Server, **options: object) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=server.address.path or None)
        clients.append(httpx.Client(base_url=server.url, transport=transport, timeout=20.0, trust_env=False, **options))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()
