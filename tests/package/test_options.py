import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import _penstock, options
from penstock.options import BY_NAME, GROUPS, OPTIONS

ROOT = Path(__file__).resolve().parents[2]


def test_the_core_wants_exactly_the_settings_of_the_table():
    chosen = {option.name: option.default for option in OPTIONS}
    assert set(options.core_settings(chosen)) == set(_penstock.SETTINGS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_row_is_complete(option):
    assert option.group in GROUPS
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", option.name)
    assert option.help.endswith("."), "a help text is made of sentences"
    if option.default is not None:
        assert option.kind.read(option.default) == option.default
        assert option.kind.read(option.kind.write(option.default)) == option.default
    if option.example is not None:
        option.kind.read(option.example)


def test_no_two_options_share_a_spelling():
    spellings = [spelling for option in OPTIONS for spelling in (option.flag, *option.flags)]
    assert len(spellings) == len(set(spellings))
    assert len(BY_NAME) == len(OPTIONS)


def test_the_documentation_follows_the_table():
    script = ROOT / "tools" / "options_page.py"
    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def core(listener, **changed):
    chosen = {option.name: option.default for option in OPTIONS} | changed
    return _penstock.Server(lambda environ, start_response: [], options.core_settings(chosen), [listener.fileno()])


def test_the_documented_atoms_are_those_of_the_core(listener):
    for atom in options.ACCESS_LOG_ATOMS:
        core(listener, access_log="/dev/null", access_log_format=f"<{{{atom}}}>")
    with pytest.raises(ValueError, match=r"unknown atom \{clinet\}; known are") as caught:
        core(listener, access_log="/dev/null", access_log_format="{clinet}")
    assert set(re.findall(r"\w+", str(caught.value).partition("known are ")[2])) == set(options.ACCESS_LOG_ATOMS)


def test_the_core_names_unknown_and_missing_settings(listener):
    settings = options.core_settings({option.name: option.default for option in OPTIONS})
    with pytest.raises(ValueError, match="treads"):
        _penstock.Server(lambda environ, start_response: [], settings | {"treads": 3}, [listener.fileno()])
    del settings["threads"]
    with pytest.raises(ValueError, match="threads"):
        _penstock.Server(lambda environ, start_response: [], settings, [listener.fileno()])


@pytest.mark.parametrize(
    ("changed", "derived"),
    [
        ({}, {"hub": False, "threads": 128, "single_thread": False, "multithread": True, "multiprocess": False}),
        (
            {"threads": 1},
            {"hub": False, "threads": 1, "single_thread": False, "multithread": False, "multiprocess": False},
        ),
        (
            {"debug": True},
            {"hub": False, "threads": 128, "single_thread": True, "multithread": False, "multiprocess": False},
        ),
        (
            {"gevent": True, "threads": 1, "workers": 2},
            {"hub": True, "threads": 10_000, "single_thread": False, "multithread": True, "multiprocess": True},
        ),
    ],
)
def test_settings_that_follow_from_others(changed, derived):
    chosen = {option.name: option.default for option in OPTIONS} | changed
    settings = options.core_settings(chosen)
    assert {name: settings[name] for name in options.DERIVED} == derived


@pytest.mark.parametrize(
    ("written", "read"), [("", ""), ("/", ""), ("/app", "/app"), ("/app/", "/app"), ("/a/b", "/a/b")]
)
def test_a_root_path_has_no_final_slash(written, read):
    assert BY_NAME["root_path"].kind.read(written) == read


@pytest.mark.parametrize("written", ["app", "/caf\u00e9", "/a\nb"])
def test_what_is_no_root_path_is_refused(written):
    with pytest.raises(ValueError, match="must"):
        BY_NAME["root_path"].kind.read(written)
