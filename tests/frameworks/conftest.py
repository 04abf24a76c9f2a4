"""Fixtures for the tests of whole frameworks under a real `tailrace`, of clients, and of proxies in front of it."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from harness.server import Server


@pytest.fixture
def browser() -> Iterator[Callable[..., httpx.Client]]:
    """`browser(server)`: a client of this server that keeps cookies and connections, and follows no redirect."""
    clients: list[httpx.Client] = []

    def open_client(server: Server, **options: object) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=server.address.path or None, verify=False, trust_env=False)
        # verify=False: no certificates to read, which takes longer than most of the tests.
        client = httpx.Client(base_url=server.url, transport=transport, timeout=20.0, trust_env=False, **options)
        clients.append(client)
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture
def client(server: Server, browser: Callable[..., httpx.Client]) -> httpx.Client:
    """A client of the server of a module."""
    return browser(server)
