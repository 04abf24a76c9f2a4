"""Load by wrk, or by the client that ships with Tailrace: both count the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from harness.server import Server
from harness.tools import need_tool

from tailrace.compare import load, machine
from tailrace.compare.work import Work

CORE = machine.CORES[-1]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Server("srv_shapes:app") as server:
        yield f"http://{server.address.host}:{server.address.port}"


@pytest.fixture(params=["wrk", "own"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without wrk on PATH."""
    if request.param == "wrk":
        need_tool("wrk")
    else:
        which = shutil.which
        monkeypatch.setattr(shutil, "which", lambda tool, *rest, **more: None if tool == "wrk" else which(tool))
    return request.param


@pytest.mark.parametrize("close", [False, True], ids=["kept", "closed"])
def test_answers_times_and_processor_time_are_counted(url: str, client: str, close: bool) -> None:
    found = load.run(Work(f"{url}/list?size=5000", 4, 1.0, CORE, close=close))
    assert (found.errors, found.detail) == (0, "")
    assert found.answers == pytest.approx(found.rate * found.seconds, abs=1)
    assert found.answers > 10
    assert found.p50 is not None
    assert found.p99 is not None
    assert 0 < found.p50 <= found.p99
    assert 0 < found.processor < 3 * found.seconds


def test_refusals_are_errors_and_not_in_the_rate(url: str, client: str) -> None:
    found = load.run(Work(url, 4, 1.0, CORE, fields=("Transfer-Encoding: x",)))
    assert found.rate == 0
    assert found.answers > 0
    assert f"{found.answers} status" in found.detail


def test_uploads_are_sent_whole(url: str, client: str) -> None:
    found = load.run(Work(f"{url}/", 4, 1.0, CORE, upload=True))
    assert (found.errors, found.detail) == (0, "")
    assert found.answers > 0


def test_a_port_where_nobody_listens_is_an_error(client: str) -> None:
    found = load.run(Work("http://127.0.0.1:1/", 2, 1.0, CORE))
    assert found.rate == 0
    assert found.errors > 0


def test_the_client_that_is_used_is_the_one_that_is_named(client: str) -> None:
    command = load.command(Work("http://127.0.0.1:1/", 2, 1.0, CORE))
    assert ("wrk" in command) == (client == "wrk")
    assert ("tailrace.compare.own_client" in command) == (client == "own")
    assert ("own client" in machine.facts()["load"]) == (client == "own")
