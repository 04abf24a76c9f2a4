"""What is shown while it lasts."""

from __future__ import annotations

import sys

import pytest

from tailrace.compare import progress


def test_without_a_terminal_each_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(3) as told:
        told.experiment(2, "Pong")
        told.step("round 1 of 5: granian")
    assert capsys.readouterr().err == "[2/3] Pong: round 1 of 5: granian\n"


def test_a_terminal_without_rich_gets_lines_and_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress.shown(3) as told:
        told.experiment(1, "Pong")
        told.step("starting")
    assert capsys.readouterr().err.splitlines() == [
        "for progress bars, install rich: pip install 'tailrace[compare]'",
        "[1/3] Pong: starting",
    ]


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress.shown(3) as told:
        assert isinstance(told, progress.Bars)
        told.experiment(2, "Pong [64]")
        told.step("round 1 of 5: granian")
        told.progress.refresh()
    shown = capsys.readouterr().err
    assert "1/3" in shown
    assert "Pong [64]: round 1 of 5: granian" in shown
