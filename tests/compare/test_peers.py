"""The table of servers and that of scenarios."""

from __future__ import annotations

import importlib

import pytest

from tailrace.compare import peers, scenarios


@pytest.mark.parametrize("peer", [*peers.PEERS, peers.FLOOR], ids=lambda peer: peer.name)
@pytest.mark.parametrize("many", [False, True])
def test_every_command_can_be_filled_in(peer: peers.Peer, many: bool) -> None:
    values = {"app": "a:b", "host": "h", "port": "1", "bin": "bin", "socket": "s", "state": "d"}
    for over_unix in (False, True):
        line = " ".join(peer.arguments(over_unix, many, **values))
        assert "{" not in line
        assert not many or peer.many in line


@pytest.mark.parametrize("module", peers.CLOSED)
def test_a_server_that_does_not_call_close_gets_an_application_that_does(module: str) -> None:
    pytest.importorskip(module.removeprefix("served.").removesuffix("_hello"))
    values = {"app": f"{module}:app", "host": "h", "port": "1", "bin": "bin", "socket": "s", "state": "d"}
    lines = {peer.name: peer.arguments(**values) for peer in peers.PEERS}
    assert f"{module}:closed" in lines["fastwsgi"]
    assert f"{module}:app" in lines["bjoern"]
    assert callable(importlib.import_module(f"tailrace.compare.{module}").closed)


def test_a_word_of_a_name_chooses() -> None:
    assert [peer.name for peer in peers.by_name(["gthread", "bjoern"])] == ["gunicorn gthread", "bjoern"]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no such server: unicorn"):
        peers.by_name(["tailrace", "unicorn"])
    with pytest.raises(ValueError, match="no such scenario: ping"):
        scenarios.by_name(["ping"])


def test_the_servers_of_a_scenario_are_in_the_table() -> None:
    known = {peer.name for peer in peers.PEERS}
    for scenario in scenarios.SCENARIOS:
        assert set(scenario.among + scenario.also) <= known, scenario.name


def test_a_row_that_waits_to_be_asked_takes_part_where_it_is_named() -> None:
    table = {scenario.name: scenario for scenario in scenarios.SCENARIOS}
    gevent = next(peer for peer in peers.PEERS if peer.name == peers.TAILRACE_GEVENT)
    threads = next(peer for peer in peers.PEERS if peer.name == peers.TAILRACE)
    assert not table["startup"].admits(gevent)
    assert table["words"].admits(gevent)
    assert table["startup"].admits(threads)
    assert table["words"].admits(threads)
    assert table["overload"].admits(threads)
    assert not table["overload"].admits(gevent)


def test_no_two_metrics_share_a_key() -> None:
    keys = [metric.key for scenario in scenarios.SCENARIOS for metric in scenario.metrics]
    assert len(keys) == len(set(keys))
