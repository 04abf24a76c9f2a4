"""`tailrace compare`: wrong use, and short runs with real servers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from harness.tools import need_tool
from tailrace_compare import main, own, peers, rounds, scenarios, strace
from tailrace_compare.main import Asked, Interrupt, Session
from tailrace_compare.resume import Earlier

import tailrace
from tailrace.command import cli
from tailrace.errors import ConfigError

ROOT = Path(tailrace.__file__).parents[1]
APP = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]
"""
BOTH = ("--servers", "tailrace,wsgiref", "--rounds", "1")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["compare", *arguments])


def wrong(*arguments: str) -> str:
    """The message of a run that does not begin."""
    result = invoke(*arguments)
    assert result.exception is not None
    return str(result.exception)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tailrace", "compare", *arguments]


def environment(directory: Path) -> dict[str, str]:
    """The servers' directories are in this one."""
    (directory / "temporary").mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory / "temporary")}


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, since it chooses a core for itself."""
    for tool in ("curl", "taskset"):
        need_tool(tool)
    done = subprocess.run(
        command(*arguments), cwd=directory, env=environment(directory), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def results(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "comparison" / "results.json").read_text())
    return found


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def below(directory: Path) -> list[int]:
    """Processes whose working directory is in this one."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(directory):
                found.append(int(entry.name))
    return found


def test_unknown_names_are_refused_with_those_that_there_are() -> None:
    assert "--servers: no such server: unicorn; choose from tailrace, " in wrong("--servers", "unicorn")
    assert "--only: no such experiment: ping; choose from " in wrong("--only", "ping")


def test_a_url_needs_an_application_and_an_application_has_experiments_of_its_own() -> None:
    assert "--url needs an application" in wrong("--url", "/", "--servers", "wsgiref")
    said = wrong("shop:app", "--only", "startup", "--servers", "wsgiref")
    assert said == "--only: no such experiment: startup; with an application, choose from c64, c1, new, fetch"
    assert "MODULE:CALLABLE" in wrong("shop:create()", "--servers", "wsgiref")


def test_a_server_that_is_named_and_not_installed_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "version_of", lambda name, home=None: None)
    monkeypatch.setattr(peers.Peer, "told_version", lambda peer: None)
    assert "not installed: bjoern; `tailrace compare --install`" in wrong("--servers", "bjoern")


def test_what_strace_may_not_count_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(strace, "hindrance", lambda: "strace: attach: Operation not permitted")
    chosen = scenarios.by_name(["calls", "startup"])
    assert [each.name for each in main.traceable(Asked(), chosen)] == ["startup"]
    assert "not measured: calls: strace: attach: Operation not permitted; run as root" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="calls: strace: attach"):
        main.traceable(Asked(only=("calls",)), chosen)


@pytest.mark.parametrize("option", [("--rounds", "0"), ("--seconds", "0"), ("--minutes", "-1"), ("--unknown",)])
def test_wrong_values_are_usage_errors(option: tuple[str, ...]) -> None:
    assert invoke(*option).exit_code == 2


def test_a_quick_run_has_the_first_rows_of_the_main_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.Peer, "version", lambda peer: "1")
    names = [peer.name for peer in main.chosen_servers(Asked(quick=True))]
    assert "granian" in names
    assert not [name for name in names if " at Tailrace's defaults" in name]


def test_starting_the_server_imports_nothing_of_it() -> None:
    line = "import sys, tailrace.command; print([name for name in sys.modules if name.startswith('tailrace_compare')])"
    told = subprocess.run([sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"


def test_two_servers_from_start_to_report(tmp_path: Path) -> None:
    told = run(tmp_path, "--only", "segments,startup", *BOTH, "--seconds", "0.1")
    document = results(tmp_path)
    assert document["run"]["complete"] is True
    assert document["run"]["finished"] == ["segments", "startup"]
    assert document["columns"]["segments"]["servers"]["tailrace"]["median"] == 1
    assert document["columns"]["startup"]["servers"]["wsgiref"]["median"] > 0
    assert document["versions"]["wsgiref"].startswith("of Python 3")
    assert "wsgiref" in document["commands"]["wsgiref"]
    assert [look["before"] for look in document["noise"]["looks"]] == ["segments", "startup", "the end"]
    assert "Start-up: ms, less is better" in told.stdout
    assert ("No ranking." in told.stdout) == document["noise"]["refused"]
    assert (tmp_path / "comparison" / "report.md").exists()
    assert not list((tmp_path / "temporary").iterdir())
    # The reports alone, again.
    (tmp_path / "comparison" / "report.md").unlink()
    run(tmp_path, "--render")
    assert (tmp_path / "comparison" / "report.md").exists()


@pytest.mark.parametrize(
    "broken",
    [
        "[" * 100_000,
        "[]",
        '{"columns": []}',
        '{"scenarios": [1]}',
        '{"machine": {"processor": 1}}',
        '{"columns": {"a": {"servers": {"b": {"rounds": {"0": "<b>"}, "rounds_tried": 1, "errors": 0, "notes": []}}}}}',
        '{"goals": [{"metric": "a", "goal": "", "measured": "", "met": "maybe"}]}',
    ],
)
def test_a_file_that_is_no_run_is_an_error_and_stays_as_it_is(broken: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(broken)
    assert f"{tmp_path}/results.json" in wrong("--render", "--output", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    assert (tmp_path / "results.json").read_text() == broken


def test_a_directory_that_cannot_be_written_is_an_error_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = wrong("--servers", "wsgiref", "--only", "startup", "--output", str(tmp_path / "file" / "below"))
    assert said == f"--output {tmp_path}/file/below: Not a directory"


def test_an_interruption_that_python_drops_is_repeated() -> None:
    interrupt = Interrupt()
    interrupt.check()
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGTERM, None)
    with pytest.raises(KeyboardInterrupt):
        interrupt.check()


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_is_continued_and_leaves_no_server(tmp_path: Path, number: int) -> None:
    arguments = ("--only", "segments,list_c4", *BOTH)
    path = tmp_path / "comparison" / "results.json"
    with subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True
    ) as process:
        # `segments` is finished, and a server of list_c4 is running.
        until(lambda: path.exists() and bool(below(tmp_path / "temporary")))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or "interrupted: 1 of 2 experiments are in comparison/results.json" in said
    until(lambda: not below(tmp_path / "temporary"))
    before = results(tmp_path)
    assert before["run"]["finished"] == ["segments"]
    told = run(tmp_path, *arguments)
    assert "continuing comparison/results.json: 1 experiment finished" in told.stderr
    assert "[2/2]" in told.stderr
    assert "[1/2]" not in told.stderr
    after = results(tmp_path)
    assert after["run"]["complete"] is True
    assert after["columns"]["segments"] == before["columns"]["segments"]


@pytest.mark.nightly
def test_an_application_of_ones_own_is_measured_on_each_server(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    told = run(tmp_path, "shop:application", "--url", "/report", "--only", "c64,fetch", *BOTH, "--seconds", "0.1")
    assert "/report: status 200, 5 bytes, compared byte for byte" in told.stderr
    document = results(tmp_path)
    columns = document["columns"]
    assert columns.keys() == {"url1_c64", "url1_c64_p50", "url1_c64_p99", "url1_first", "url1_whole"}
    for key in ("url1_c64", "url1_first", "url1_whole"):
        assert all(columns[key]["servers"][name]["median"] > 0 for name in ("tailrace", "wsgiref"))
    assert document["machine"]["the response to /report"] == "status 200, 5 bytes, compared byte for byte"


def test_an_experiment_with_more_servers_gets_more_of_the_time() -> None:
    servers = peers.by_name(["tailrace", "granian", "waitress"])
    table = {scenario.name: scenario for scenario in scenarios.SCENARIOS}
    # The second experiment names the servers that take part.
    left = [table["pong_c64"], table["connections_c16"]]
    entrants = [sum(rounds.admits(scenario, peer) for peer in servers) for scenario in left]
    assert entrants[0] > entrants[1] > 0
    first = main.share(60.0, left, servers)
    assert first == pytest.approx(60 * entrants[0] / sum(entrants))
    assert main.share(60.0 - first, left[1:], servers) == pytest.approx(60 - first), "the last one gets the rest"


@pytest.mark.nightly
def test_a_run_without_time_names_what_it_did_not_measure(tmp_path: Path) -> None:
    session = Session(
        Asked(minutes=0.0001, output=tmp_path),
        (),
        tuple(scenarios.by_name(["pong_c1"])),
        {},
        {},
        Earlier(),
        Interrupt(),
    )
    session.minutes_before = 1.0
    assert main.measure(session) == 0
    assert json.loads((tmp_path / "results.json").read_text())["not_measured"] == [session.chosen[0].title]


def test_several_urls_are_each_measured_once_before_any_is_measured_again() -> None:
    chosen = own.experiments("shop:app", Path(), {"/a": None, "/b": None})
    assert [each.name for each in chosen[:4]] == ["url1_c64", "url2_c64", "url1_c1", "url2_c1"]
    quick = main.chosen_servers(Asked(app="shop:app", quick=True))
    some = main.chosen_servers(Asked(app="shop:app", quick=True, urls=("/a", "/b")))
    assert {each.first for each in quick} <= {*main.QUICK_SERVERS, peers.TAILRACE_GEVENT}
    assert {each.first for each in some} <= {*main.QUICK_SERVERS[:3], peers.TAILRACE_GEVENT} & {
        each.first for each in quick
    }
