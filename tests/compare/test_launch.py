"""What a server finds around it, and what others may do there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import pytest

from tailrace.compare import peers
from tailrace.compare.launch import Server
from tailrace.compare.peers import Peer


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the row with this name; it need not be installed to have its directory."""
    server = Server(row(request.param), "served.shapes:pong")
    yield server
    server.stop()


def row(name: str) -> Peer:
    return next(peer for peer in peers.PEERS if peer.name == name)


@pytest.mark.parametrize("made", [peers.WSGIREF], indirect=True)
def test_nobody_else_may_write_where_a_server_looks_for_modules(made: Server) -> None:
    for directory in (made.state, made.state / "path"):
        assert not stat.S_IMODE(directory.stat().st_mode) & 0o022


@pytest.mark.skipif(not peers.as_ordinary_user(), reason="Apache gives up root's rights where this process has them")
@pytest.mark.parametrize("made", ["mod_wsgi"], indirect=True)
def test_apache_has_a_directory_of_its_own_where_it_is_another_user(made: Server) -> None:
    assert (made.state / "apache").owner() == "nobody"
    assert made.state.stat().st_uid == os.getuid()
