"""Requests each second, and who else used the server's core."""

from types import SimpleNamespace
from typing import cast

import pytest
from tailrace_compare import load, machine, scenarios
from tailrace_compare.launch import Server
from tailrace_compare.peers import PEERS
from tailrace_compare.scenarios.scenario import Ask
from tailrace_compare.work import Load

SERVER = cast("Server", SimpleNamespace(url="http://127.0.0.1:1", peer=PEERS[0], processor_seconds=lambda: 0.0))


@pytest.mark.parametrize(
    ("name", "cores", "told"),
    [("pong_c64", (0, 1), True), ("pong_c1", (0, 1), False), ("pong_c64", (0, 0), False)],
    ids=["a core each", "one core by choice", "one core for want of another"],
)
def test_a_client_on_the_servers_core_is_not_counted_as_another_user_of_it(
    name: str, cores: tuple[int, int], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SERVER_CORE", cores[0])
    monkeypatch.setattr(machine, "LOAD_CORE", cores[1])
    monkeypatch.setattr(machine, "idle_seconds", lambda core: 0.0)
    monkeypatch.setattr(load, "run", lambda work: Load(10.0, 0, "", answers=10, seconds=1.0))
    (scenario,) = scenarios.by_name([name])
    assert (scenario.load(SERVER, Ask(1.0, quick=False)).others is not None) == told
