"""Fixtures for the tests of the comparison."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end, which does not block, and the server's."""
    client, server = socket.socketpair()
    client.setblocking(False)
    with client, server:
        yield client, server
