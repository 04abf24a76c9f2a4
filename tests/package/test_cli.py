import json
import re
import subprocess
import sys

import pytest
import tomllib
from click.testing import CliRunner

import penstock
from penstock import master
from penstock.cli import cli, main
from penstock.log import logger
from penstock.options import OPTIONS


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """An empty current directory; what a command does to its process is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = logger.handlers.copy(), logger.level, logger.propagate
    yield tmp_path
    logger.handlers[:], logger.level, logger.propagate = before


def run(*arguments, **environ):
    return CliRunner().invoke(cli, arguments, env=environ)


def failing(monkeypatch, capsys, *arguments):
    """Status and standard error of a command that does not get as far as serving."""
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


def test_the_version_is_the_cores():
    assert run("--version").output == f"penstock {penstock.__version__}\n"


def test_help_shows_the_commands_and_examples():
    for flag in ("--help", "-h"):
        shown = run(flag).output
        assert "config" in shown
        assert "serve" in shown
        assert "penstock mysite.wsgi" in shown


def test_help_of_serve_shows_every_option_under_its_group():
    shown = run("serve", "--help").output
    for option in OPTIONS:
        group = shown.index(f"\n{option.group}:\n")
        name = option.kind.metavar if option.positional else option.flag
        assert re.search(rf"{re.escape(name)}\b", shown[group:]), option.name
        for flag in option.flags:
            assert flag in shown
    assert "[default: 127.0.0.1:8000]" in shown
    assert "--keep-alive" in shown


def test_serve_is_the_default_command(monkeypatch):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: served.append(settings))
    for arguments in (["shop:app"], ["serve", "shop:app"], ["--threads", "3", "shop:app"], ["shop:app", "--threads=3"]):
        assert run(*arguments).exit_code == 0
    assert [settings["app"].value for settings in served] == ["shop:app"] * 4
    assert [settings["threads"].value for settings in served] == [128, 128, 3, 3]


def test_the_application_can_come_from_environment_or_file(monkeypatch, directory):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: served.append(settings))
    (directory / "penstock.toml").write_text('app = "filed:app"\n')
    assert run().exit_code == 0
    assert run(PENSTOCK_APP="shop:app").exit_code == 0
    assert [settings["app"].value for settings in served] == ["filed:app", "shop:app"]


def test_without_an_application_the_usage_is_explained(monkeypatch, capsys):
    status, shown = failing(monkeypatch, capsys)
    assert status == 2
    assert "which application?" in shown


def test_a_repeated_address_is_a_list(monkeypatch):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: served.append(settings))
    run("shop:app", "-b", ":80", "--bind", "[::]:80")
    assert served[0]["bind"] == ((":80", "[::]:80"), "command line: --bind")


def test_aliases_and_negations(monkeypatch, directory):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: served.append(settings))
    (directory / "penstock.toml").write_text("debug = true\n")
    run("shop:app", "--keep-alive", "5s", "--no-debug")
    assert served[0]["idle_timeout"].value == 5.0
    assert served[0]["debug"].value is False


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["shop:app", "--threads", "0"], 2, "penstock: error: --threads '0': must be at least 1\n"),
        (["shop:app", "--max-body", "lots"], 2, "penstock: error: --max-body 'lots': must be a size"),
        (
            ["shop:app", "--bind", "localhost"],
            2,
            "penstock: error: bind 'localhost': not an address; write localhost:8000\n",
        ),
        (["shop:app", "--chdir", "absent"], 2, "penstock: error: chdir 'absent': No such file or directory\n"),
        (["shop:app", "--config", "absent.toml"], 2, "penstock: error: absent.toml: no such file"),
        (["shop:app", "--tread", "1"], 2, "No such option"),
        (["shop:app", "surplus"], 2, "unexpected extra argument"),
        (["absent:app", "--bind", "127.0.0.1:0"], 1, "penstock: error: no module named 'absent'"),
        (["./absent.py", "--bind", "127.0.0.1:0"], 1, "penstock: error: ./absent.py: no such file"),
        (["shop:app", "--bind", "fd://987"], 1, "penstock: error: cannot listen on fd://987"),
    ],
)
def test_a_mistake_is_one_line_and_a_status(monkeypatch, capsys, directory, arguments, status, message):
    (directory / "shop.py").write_text("def app(environ, start_response): return []\n")
    ended, shown = failing(monkeypatch, capsys, *arguments)
    assert ended == status
    assert message in shown
    assert "Traceback" not in shown


def test_a_failure_inside_the_application_shows_its_traceback(monkeypatch, capsys, directory):
    (directory / "broken.py").write_text("import absent_library\n")
    status, shown = failing(monkeypatch, capsys, "broken:app", "--bind", "127.0.0.1:0")
    assert status == 1
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.endswith("error: importing broken failed: ModuleNotFoundError: No module named 'absent_library'\n")


def test_config_prints_what_is_in_effect_and_its_source(directory):
    (directory / "penstock.toml").write_text("backlog = 64\n")
    shown = run("config", "shop:app", "--threads", "4", PENSTOCK_MAX_BODY="10MiB").output
    for line in (
        r'app = "shop:app" +# command line: MODULE:CALLABLE',
        r"threads = 4 +# command line: --threads",
        r'max_body = "10MiB" +# PENSTOCK_MAX_BODY',
        r"backlog = 64 +# penstock.toml",
        r"# access_log is unset +# default",
    ):
        assert re.search(rf"^{line}$", shown, re.MULTILINE), line


def test_config_prints_a_file_that_reads_back_the_same(directory):
    given = [
        "--umask",
        "027",
        "--body-memory",
        "1000",
        "--write-timeout",
        "1.5",
        "--access-log-format",
        '{method} "{path}" # \u00e9',
    ]
    first = run("config", *given).output
    tomllib.loads(first)
    (directory / "penstock.toml").write_text(first)
    as_json = json.loads(run("config", "--format", "json", *given).output)
    again = json.loads(run("config", "--format", "json").output)
    assert {name: entry["value"] for name, entry in again.items()} == {
        name: entry["value"] for name, entry in as_json.items()
    }
    assert again["umask"] == {"value": "0o027", "source": "penstock.toml"}
    assert set(again) == {option.name for option in OPTIONS}


def test_python_m_penstock_is_the_command():
    shown = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"penstock {penstock.__version__}\n"
