"""The options table, and what derives from it."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest
from harness.settings import server_settings

from tailrace import _tailrace
from tailrace.cli import options
from tailrace.cli.option import FUNCTIONS, GROUPS, Place
from tailrace.cli.options import BY_NAME, OPTIONS
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import from_keywords, resolve
from tailrace.errors import ConfigError
from tailrace.paste import keywords
from tailrace.system.cgroup import Machine

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_field_has_the_type_of_the_values_of_its_row(option):
    hint = get_type_hints(ServerSettings)[option.name]
    assert fits(option.default, hint), option.default
    if option.example is not None:
        assert fits(option.kind.read(option.example), hint), option.example
    assert (type(None) in get_args(hint)) == (option.default is None), "None only where it is the default"


def fits(value, hint):
    """Whether the value is one of the type, and no more than that: True is no int here."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        if arguments[-1] is ...:
            return type(value) is tuple and all(fits(each, arguments[0]) for each in value)
        return type(value) is tuple and len(value) == len(arguments) and all(map(fits, value, arguments))
    return type(value) is hint


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_row_is_complete(option):
    assert option.group in GROUPS
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", option.name)
    assert option.help.endswith("."), "a help text is made of sentences"
    assert option.details == "" or option.details.endswith((".", "`")), option.details
    assert re.fullmatch(r"(-[a-z])?", option.short)
    if option.default is not None:
        assert option.kind.read(option.default) == option.default
        assert option.kind.read(option.kind.write(option.default)) == option.default
    if option.example is not None:
        option.kind.read(option.example)


def test_no_two_options_share_a_spelling():
    spellings = [spelling for option in OPTIONS for spelling in (option.flag, option.short) if spelling]
    assert len(spellings) == len(set(spellings))
    assert len(BY_NAME) == len(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_has_one_name_written_as_the_place_demands(tmp_path, option):
    """In files with dashes, too; the short flag is no name anywhere."""
    sample = (
        True if isinstance(option.default, bool) else option.example if option.example is not None else option.default
    )
    value = option.kind.read(sample)
    sample = option.kind.write(value)
    separator = "," if option.name == "static_index" else " "
    text = separator.join(map(str, sample)) if isinstance(sample, list) else str(sample)
    assert resolve({}, {option.variable: text}, directory=tmp_path)[option.name] == (value, option.variable)
    assert from_keywords({option.name: sample})[option.name] == (value, "argument")
    assert keywords({option.name.replace("_", "-"): text}) == {option.name: text}
    file = tmp_path / "tailrace.toml"
    for key in (option.name, option.name.replace("_", "-")):
        file.write_text(f"{key} = {json.dumps(sample)}\n")
        assert resolve({}, {}, directory=tmp_path)[option.name] == (value, str(file))
    if option.short:
        with pytest.raises(ConfigError, match="unknown option"):
            from_keywords({option.short[1:]: sample})
        file.write_text(f"{option.short[1:]} = {json.dumps(sample)}\n")
        with pytest.raises(ConfigError, match="unknown key"):
            resolve({}, {}, directory=tmp_path)


def test_the_documentation_follows_the_table():
    script = ROOT / "tools" / "options_page.py"
    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_a_keyword_may_be_none_where_none_is_the_default():
    stub = (ROOT / "tailrace" / "embed" / "keywords.pyi").read_text()
    without_value = [option.name for option in OPTIONS if option.default is None]
    assert all(from_keywords({name: None})[name].value is None for name in without_value)
    typed = dict(re.findall(r"^    (\w+): (.+)$", stub, re.MULTILINE))
    assert all(typed[name].endswith(" | None") for name in without_value if name in typed)


def section(heading):
    page = (ROOT / "docs" / "options.md").read_text()
    return page.partition(f"\n{heading}\n")[2].partition("\n#")[0].strip()


def listed(text):
    """The places of a list, such as `a`, `b` or `c`; "programs" stands for all functions."""
    text = text.replace("programs", ", ".join(place.value for place in FUNCTIONS))
    return {Place(each) for each in re.split(", | or | and ", text.replace("`", ""))}


CONFLICTING = [{BY_NAME[name].flag, place.value} for name, place in options.CONFLICTS]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_page_says_where_an_option_is_not_available(option):
    line = section(f"### {option.name}").splitlines()[-1]
    stated = set()
    for verb, text in re.findall(r"(Requires|Conflicts with|No effect with|Not in) (.+?)\.(?= [A-Z]|$)", line):
        named = listed(f"without {text}" if verb == "Requires" else text)
        assert all(({option.flag, place.value} in CONFLICTING) == (verb == "Conflicts with") for place in named)
        assert all((place in FUNCTIONS) == (verb == "Not in") for place in named)
        stated |= named
    assert stated == set(option.absent)


def test_the_page_gives_the_reason_for_each_absence():
    found = {}
    for row in section("## Where options are not available").splitlines()[2:]:
        names, where, reason = row.strip("| ").split(" | ")
        for name in re.findall(r"#(\w+)", names):
            for part in re.split(", (?=with)", where):
                for place in listed(re.sub("^(in|with) ", "", part)):
                    assert (name, place) not in found
                    found[name, place] = reason.replace("`", "")
    reasons = {(option.name, place): reason for option in OPTIONS for place, reason in option.absent.items()}
    assert found == {key: reason.replace("`", "") for key, reason in reasons.items()}


def test_contradictions_have_a_reason():
    assert all(place in BY_NAME[name].absent for name, place in options.CONFLICTS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_core_takes_the_most_of_every_number(listener, option):
    """Fails where the table lets through what the core cannot hold."""
    for most in ("9" * 99, "1024TiB", "3000000000", "999999999999", "65535", "4096"):
        try:
            value = option.kind.read(most)
        except ValueError:
            continue
        if isinstance(value, (int, float)):
            core(listener, **{option.name: value})
            return


def core(listener, **changed):
    settings = server_settings(**changed).core() | {"holder": None, "holder_proof": None, "is_behind_holder": False}
    return _tailrace.Server(
        lambda environ, start_response: [], settings, [_tailrace.ListeningSocket(listener.fileno())]
    )


@pytest.fixture
def atoms(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("access_log_atoms")


def test_the_documented_atoms_are_those_of_the_core(listener, atoms):
    for atom, _ in _tailrace.ATOMS:
        core(listener, access_log="/dev/null", access_log_format=f"<{{{atom}}}>")
    for letter in atoms.LETTERS:
        name = "HTTP_X" if letter.endswith("e)s") else "X-Y"
        core(listener, access_log="/dev/null", access_log_format=f"<{letter.replace('NAME', name)} %(s)s>")
    for field in atoms.FIELDS:
        core(listener, access_log="/dev/null", access_log_format=f"<{{{field.replace('NAME', 'X-Y')}}}>")
    with pytest.raises(
        ValueError, match=r"unknown atom \{clinet\}; did you mean \{client\}\?; write fields as .*; or choose from"
    ) as caught:
        core(listener, access_log="/dev/null", access_log_format="{clinet}")
    assert str(caught.value).partition("choose from ")[2].split(", ") == [atom for atom, _ in _tailrace.ATOMS]


def test_the_core_names_unknown_and_missing_settings(listener):
    settings = server_settings().core() | {"holder": None, "holder_proof": None, "is_behind_holder": False}
    with pytest.raises(ValueError, match="treads"):
        _tailrace.Server(
            lambda environ, start_response: [], settings | {"treads": 3}, [_tailrace.ListeningSocket(listener.fileno())]
        )
    del settings["threads"]
    with pytest.raises(ValueError, match="threads"):
        _tailrace.Server(lambda environ, start_response: [], settings, [_tailrace.ListeningSocket(listener.fileno())])


@pytest.mark.parametrize(
    ("changed", "derived"),
    [
        ({}, {"executor": "threads", "threads": 128, "multithread": True, "multiprocess": False}),
        (
            {"threads": 1},
            {"executor": "threads", "threads": 1, "multithread": False, "multiprocess": False},
        ),
        (
            {"debug": True},
            {"executor": "inline", "threads": 128, "multithread": False, "multiprocess": False},
        ),
        (
            {"gevent": True, "threads": 1, "workers": 2},
            {"executor": "greenlets", "threads": 10_000, "multithread": True, "multiprocess": True},
        ),
    ],
)
def test_settings_that_follow_from_others(changed, derived):
    settings = server_settings(**changed).core()
    assert {name: settings[name] for name in derived} == derived


MIB = 1 << 20


@pytest.mark.parametrize(
    ("limit", "workers", "changed", "memory"),
    [
        (None, 100, {}, 512),
        # A quarter of the limit, for all workers together.
        (512, 2, {}, 64),
        (512, "auto", {}, 32),
        (2048, 1, {}, 512),
        (1 << 20, 1, {}, 512),
        # But enough to serve.
        (64, 4, {}, 16),
        (1, 1024, {}, 16),
        # What was chosen counts.
        (64, 1, {"client_memory": 256 * MIB}, 256),
    ],
)
def test_client_memory_fits_the_limit_of_the_container(limit, workers, changed, memory):
    machine = Machine(4, memory=None if limit is None else limit * MIB)
    settings = server_settings(machine=machine, workers=workers, **changed).core()
    assert settings["client_memory"] == memory * MIB


@pytest.mark.parametrize(
    ("written", "read"), [("", ""), ("/", ""), ("/app", "/app"), ("/app/", "/app"), ("/a/b", "/a/b")]
)
def test_a_root_path_has_no_final_slash(written, read):
    assert BY_NAME["root_path"].kind.read(written) == read


@pytest.mark.parametrize("written", ["app", "/caf\u00e9", "/a\nb"])
def test_what_is_no_root_path_is_refused(written):
    with pytest.raises(ValueError, match="must"):
        BY_NAME["root_path"].kind.read(written)


@pytest.mark.parametrize(
    ("workers", "debug", "count", "multiprocess"),
    [
        (1, False, 1, False),
        (3, False, 3, True),
        (3, True, 3, False),
        ("auto", False, 2, True),
    ],
)
def test_how_many_workers(workers, debug, count, multiprocess):
    chosen = server_settings(workers=workers, debug=debug, machine=Machine(80, quota=1.5))
    assert chosen.worker_count == count
    assert chosen.core()["multiprocess"] is multiprocess
