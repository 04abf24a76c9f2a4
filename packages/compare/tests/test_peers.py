"""The table of servers and that of scenarios."""

import importlib
from pathlib import Path

import pytest
from tailrace_compare import peers, scenarios
from tailrace_compare.rounds import admits

from tailrace.cli.options import OPTIONS
from tailrace.cli.server_settings import MAX_CONNECTIONS
from tailrace.system import binds


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
    assert callable(importlib.import_module(f"tailrace_compare.{module}").closed)


def test_a_word_of_a_name_chooses() -> None:
    assert [peer.name for peer in peers.by_name(["gthread", "bjoern"])] == [
        "gunicorn gthread",
        "gunicorn gthread at Tailrace's defaults",
        "bjoern",
    ]


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


def test_a_second_row_has_the_options_of_an_experiment_that_its_first_row_has() -> None:
    rows = {peer.name: peer for peer in peers.PEERS}
    second = rows["granian at Tailrace's defaults"]
    for scenario in scenarios.SCENARIOS:
        assert scenario.extra(second) == scenario.extra(rows["granian"])
        assert scenario.admits(second) == scenario.admits(rows["granian"])
    assert any(scenario.extra(second) for scenario in scenarios.SCENARIOS)


def test_no_two_metrics_share_a_key() -> None:
    keys = [metric.key for scenario in scenarios.SCENARIOS for metric in scenario.metrics]
    assert len(keys) == len(set(keys))


def line(name: str, cores: int = 1, app: str = "a:b") -> str:
    peer = next(peer for peer in peers.PEERS if peer.name == name)
    return peer.shown(app, cores)


def test_each_server_runs_as_its_documentation_recommends_for_the_cores() -> None:
    # (2 x cores) + 1 workers, and 4 threads for each core.
    assert "--workers 3 " in line("gunicorn gthread")
    assert "--workers 9 " in line("gunicorn gthread", cores=4)
    assert "--threads 16 " in line("gunicorn gthread", cores=4)
    assert "--processes 4 --threads 2 " in line("uwsgi http", cores=4)
    assert "--workers 4 " in line("granian", cores=4)
    # Its README asks not to tune it.
    assert "threads" not in line("granian")
    assert line("tailrace").endswith("--bind 127.0.0.1:8000")
    assert line("tailrace", cores=4).endswith("--workers 4")
    assert "--threads 5 " in line("mod_wsgi")
    assert "--embedded-mode" in line("mod_wsgi embedded")


@pytest.mark.parametrize("peer", [peer for peer in peers.PEERS if peer.of], ids=lambda peer: peer.name)
def test_a_second_row_has_our_defaults(peer: peers.Peer) -> None:
    first = next(each for each in peers.PEERS if each.name == peer.of)
    assert peer.shown() != first.shown()
    expected = peers.GREENLETS if "gevent" in peer.name else peers.THREADS
    assert f" {expected}" in peer.shown()
    assert peer.why.startswith(f"As {peer.of}, but with Tailrace's defaults: ")
    assert peers.PEERS.index(peer) == peers.PEERS.index(first) + 1


def test_the_defaults_of_the_second_rows_are_those_of_the_options() -> None:
    defaults = {option.name: option.default for option in OPTIONS}
    assert (defaults["threads"], MAX_CONNECTIONS) == (peers.THREADS, peers.CONNECTIONS)
    assert (binds.BACKLOG, defaults["keepalive_timeout"]) == (peers.BACKLOG, peers.IDLE_SECONDS)


def test_an_application_that_counts_in_its_process_gets_one() -> None:
    assert "--workers 1 " in line("gunicorn sync", app="served.shapes:words")
    assert "--workers 3 " in line("gunicorn sync", app="served.shapes:pong")


def contest(scenario: str) -> list[str]:
    (chosen,) = scenarios.by_name([scenario])
    rows = tuple(peer for peer in peers.PEERS if peer.name.startswith(("tailrace", "granian")))
    return [peer.name for peer in rows if admits(chosen, peer)]


def test_a_second_row_takes_part_where_several_clients_are_served_at_once() -> None:
    second = "granian at Tailrace's defaults"
    assert contest("pong_c64") == [peers.TAILRACE, peers.TAILRACE_GEVENT, "granian", second]
    assert contest("pong_c1") == [peers.TAILRACE, "granian"]
    assert second in contest("crowd_list")
    assert second not in contest("startup")


def test_a_command_on_path_of_another_environment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "frobnicate"
    program.write_text("#!/bin/sh\necho frobnicate 3.1.4\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    peer = peers.Peer("frobnicate", "frobnicate", "{bin}/frobnicate {app}", "")
    assert peer.version() == "3.1.4 on PATH"
    assert peer.directory() == tmp_path
    monkeypatch.setenv("PATH", "")
    assert peer.version() is None
