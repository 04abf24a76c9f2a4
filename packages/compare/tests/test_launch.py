"""What a server finds around it, and what others may do there."""

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tailrace_compare import peers, scenarios
from tailrace_compare.launch import NotServing, Place, Server
from tailrace_compare.peers import Peer
from tailrace_compare.rounds import Contest
from tailrace_compare.scenarios.scenario import Ask


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


def test_a_server_that_cannot_be_started_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    missing = tmp_path / "missing"
    with pytest.raises(OSError, match="missing"):
        Server(row(peers.WSGIREF), "shop:app", place=Place(missing))
    assert not list(tmp_path.iterdir())


def test_a_server_that_cannot_be_started_is_a_failure_of_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (startup,) = scenarios.by_name(["startup"])
    contest = Contest(startup, (row(peers.WSGIREF),), Ask(0.1, quick=True), lambda text: None)

    def refuse(peer: Peer) -> Server:
        raise NotServing("no free port")

    monkeypatch.setattr(contest, "server", refuse)
    column = contest.run(3, until=float("inf"))["startup"]
    assert column.cells[peers.WSGIREF].notes == ["no free port"]
    assert column.cells[peers.WSGIREF].errors == 2
