import json
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.options import OPTIONS
from penstock.settings import from_keywords, plain, resolve


def test_without_anything_the_defaults_hold(tmp_path):
    settings = resolve({}, {}, directory=tmp_path)
    assert plain(settings) == {option.name: option.default for option in OPTIONS}
    assert {setting.source for setting in settings.values()} == {"default"}


def test_the_command_line_beats_the_environment_beats_the_file(tmp_path):
    (tmp_path / "penstock.toml").write_text("threads = 2\nbacklog = 3\nidle_timeout = 4\n")
    environ = {"PENSTOCK_THREADS": "5", "PENSTOCK_BACKLOG": "6", "PATH": "/bin"}
    settings = resolve({"threads": "7"}, environ, directory=tmp_path)
    assert settings["threads"] == (7, "command line: --threads")
    assert settings["backlog"] == (6, "PENSTOCK_BACKLOG")
    assert settings["idle_timeout"] == (4.0, str(tmp_path / "penstock.toml"))
    assert settings["write_timeout"].source == "default"


def test_a_flag_can_take_back_what_a_file_says(tmp_path):
    (tmp_path / "penstock.toml").write_text('debug = true\naccess_log = "x.log"\n')
    settings = resolve({"debug": False, "access_log": ""}, {}, directory=tmp_path)
    assert settings["debug"].value is False
    assert settings["access_log"].value is None


def test_pyproject_is_read_when_there_is_no_penstock_toml(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.penstock]\napp = "shop:app"\nmax-body = "10MiB"\n[tool.other]\nx = 1\n'
    )
    settings = resolve({}, {}, directory=tmp_path)
    assert settings["app"].value == "shop:app"
    assert settings["max_body"] == (10 << 20, f"{tmp_path / 'pyproject.toml'} [tool.penstock]")
    (tmp_path / "penstock.toml").write_text('app = "other:app"\n')
    settings = resolve({}, {}, directory=tmp_path)
    assert (settings["app"].value, settings["max_body"].source) == ("other:app", "default")


def test_a_pyproject_without_our_table_is_nothing(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert resolve({}, {}, directory=tmp_path)["app"].source == "default"


def test_a_named_file_replaces_the_found_one(tmp_path):
    (tmp_path / "penstock.toml").write_text("threads = 2\n")
    (tmp_path / "other.toml").write_text("backlog = 9\n")
    (tmp_path / "third.toml").write_text("backlog = 10\n")
    named = str(tmp_path / "other.toml")
    environ = {"PENSTOCK_CONFIG": str(tmp_path / "third.toml")}
    assert resolve({}, {}, named, tmp_path)["threads"].source == "default"
    assert resolve({}, environ, named, tmp_path)["backlog"] == (9, named)
    assert resolve({}, environ, None, tmp_path)["backlog"].value == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thread = 3", r"unknown key 'thread'; did you mean threads\?"),
        ("zzz = 3", r"unknown key 'zzz'; `penstock config` lists"),
        ("threads = 0", r"threads = 0: must be at least 1"),
        ('threads = "many"', r"threads = 'many': must be a whole number"),
        ("bind = []", r"must name at least one"),
        ("threads = ", r"not valid TOML"),
        ("[penstock]\nthreads = 1", r"unknown key 'penstock'"),
        ('underscore_headers = "ignore"', r"must be one of drop, keep, refuse"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(tmp_path, text, message):
    (tmp_path / "penstock.toml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve({}, {}, directory=tmp_path)
    assert str(tmp_path / "penstock.toml") in str(caught.value)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("PENSTOCK_TREADS", "3", r"unknown variable PENSTOCK_TREADS; did you mean PENSTOCK_THREADS\?"),
        ("PENSTOCK_THREADS", "x", r"PENSTOCK_THREADS = 'x': must be a whole number"),
        ("PENSTOCK_DEBUG", "perhaps", r"PENSTOCK_DEBUG = 'perhaps': must be true or false"),
    ],
)
def test_a_mistake_in_the_environment_is_named(tmp_path, variable, text, message):
    with pytest.raises(ConfigError, match=message):
        resolve({}, {variable: text}, directory=tmp_path)


def test_a_missing_settings_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        resolve({}, {}, str(tmp_path / "absent.toml"))
    with pytest.raises(ConfigError, match="no such file"):
        resolve({}, {"PENSTOCK_CONFIG": str(tmp_path)})


def test_addresses_in_a_variable_are_separated(tmp_path):
    settings = resolve({}, {"PENSTOCK_BIND": ":80 unix:/run/x.sock,fd://3"}, directory=tmp_path)
    assert settings["bind"].value == (":80", "unix:/run/x.sock", "fd://3")


def test_keywords_read_no_environment_and_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_THREADS", "3")
    Path("penstock.toml").write_text("threads = 2\n")
    assert from_keywords({})["threads"] == (128, "default")
    assert from_keywords({"threads": 9})["threads"] == (9, "argument")


def test_unknown_keywords_are_errors():
    with pytest.raises(ConfigError, match=r"unknown option 'max_bodies'; did you mean max_body\?"):
        from_keywords({"max_bodies": 1})
    with pytest.raises(ConfigError, match="unknown option 'app'"):
        from_keywords({"app": "x:y"}, allowed=["threads"])


def test_every_option_can_come_from_each_source(tmp_path):
    for option in OPTIONS:
        if option.example is None:
            continue
        wanted = option.kind.read(option.example)
        text = " ".join(option.example) if isinstance(option.example, list) else str(option.example)
        (tmp_path / "one.toml").write_text(f"{option.name} = {json.dumps(option.example)}\n")
        assert resolve({}, {}, str(tmp_path / "one.toml"))[option.name].value == wanted
        assert resolve({}, {option.variable: text}, directory=tmp_path / "none")[option.name].value == wanted
        assert resolve({option.name: option.example}, {}, directory=tmp_path / "none")[option.name].value == wanted
