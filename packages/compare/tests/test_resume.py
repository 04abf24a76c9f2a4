"""What an interrupted run leaves, and when it may be continued."""

import json
from pathlib import Path
from typing import Any

import pytest
from tailrace_compare import peers, resume, scenarios
from tailrace_compare.results import Cell, Column
from tailrace_compare.scenarios.scenario import Scenario

NOW = {"option": {"--rounds": "5"}, "version": {"granian": "2.8.7"}}
CHOSEN = scenarios.by_name(["segments", "startup"])


def column(scenario: Scenario) -> Column:
    return Column(scenario.metrics[0], {"tailrace": Cell(rounds=1, values={0: 1.0})})


def document(**changes: Any) -> dict[str, Any]:
    """Of a run that was interrupted in `startup`."""
    segments = CHOSEN[0]
    run = {"complete": False, "finished": ["segments"], "identity": NOW}
    made = {
        "columns": {segments.metrics[0].key: column(segments).as_json()},
        "noise": {"refused": False, "reason": "", "looks": []},
        "minutes": 1.5,
        "run": run,
    }
    return {**made, "run": run | changes}


def stored(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "results.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_what_is_finished_is_read(tmp_path: Path) -> None:
    path = stored(tmp_path, document())
    found, said = resume.earlier(path, CHOSEN, NOW)
    assert found.finished == ["segments"]
    assert found.columns == {"segments": column(CHOSEN[0])}
    assert found.minutes == 1.5
    assert said == f"continuing {path}: 1 experiment finished (--fresh starts over)"


def test_without_a_file_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert resume.earlier(tmp_path / "results.json", CHOSEN, NOW) == (resume.Earlier(), "")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({**NOW, "option": {"--rounds": "3"}}, "option --rounds: 5 before, 3 now"),
        ({**NOW, "version": {"granian": "2.9"}}, "version granian: 2.8.7 before, 2.9 now"),
        ({**NOW, "version": {}}, "version granian: 2.8.7 before, none now"),
        ({**NOW, "machine": {"cores": "8"}}, "machine cores: none before, 8 now"),
    ],
)
def test_another_run_is_not_continued_and_the_difference_is_named(
    tmp_path: Path, now: dict[str, dict[str, str]], said: str
) -> None:
    path = stored(tmp_path, document())
    assert resume.earlier(path, CHOSEN, now) == (resume.Earlier(), f"not continuing {path}: {said}")


def test_a_complete_run_is_replaced(tmp_path: Path) -> None:
    path = stored(tmp_path, document(complete=True))
    found, said = resume.earlier(path, CHOSEN, NOW)
    assert found == resume.Earlier()
    assert said == f"{path} contains a complete run, which this run replaces"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", {"run": {"complete": False}}])
def test_a_file_that_cannot_be_read_is_replaced(tmp_path: Path, content: object) -> None:
    path = stored(tmp_path, content)
    found, said = resume.earlier(path, CHOSEN, NOW)
    assert found == resume.Earlier()
    assert said.startswith(f"not continuing {path}: cannot read it (")


def test_the_identity_has_versions_commands_machine_and_options() -> None:
    wsgiref = peers.by_name(["wsgiref"])
    found = resume.identity({"rounds": 3, "servers": ("wsgiref",)}, wsgiref)
    assert found["option"] == {"--rounds": "3", "--servers": "wsgiref"}
    assert found["command"] == {"wsgiref": wsgiref[0].shown()}
    assert set(found["version"]) == {"wsgiref", "tailrace's files"}
    assert "processor" in found["machine"]
    # Differs from minute to minute.
    assert "load before" not in found["machine"]
    assert found == resume.identity({"rounds": 3, "servers": ("wsgiref",)}, wsgiref)
