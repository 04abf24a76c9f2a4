"""The `tailrace` command: usage errors, exit statuses, `tailrace config`."""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner
from harness.toml import parse_toml
from harness.tools import with_tools

import tailrace
from tailrace.cli.arguments import CONTEXT
from tailrace.cli.options import BY_NAME, COMMON, OPTIONS
from tailrace.command import cli, main
from tailrace.logs.log import logger
from tailrace.master import main as master

ROOT = Path(__file__).resolve().parents[2]
# Commands whose packages may be missing.
OF_PACKAGES = ("compare", "doctor", "migrate", "static", "threads", "top", "trace")


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
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


def test_the_version_is_the_cores():
    assert run("--version").output == f"tailrace {tailrace.__version__}\n"


def test_help_has_the_address_of_the_manual():
    (address,) = re.findall(r'^Documentation = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert run("--help").output.endswith(f"\n  Manual: {address}\n")


def test_help_shows_the_commands_the_main_options_and_examples():
    for flag in ("--help", "-h"):
        shown = run(flag).output
        assert all(f"\n  {name} " in shown for name in cli.commands)
        flags = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)
        assert flags == [*(BY_NAME[name].flag for name in COMMON), "--config", "--version", "--help"]
        assert "tailrace mysite.wsgi" in shown
        assert re.search("^  Exit status:\n    0 ", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(words, id=" ".join(words), marks=[with_tools] if words and words[0] in OF_PACKAGES else [])
        for words in ([], *([name] for name in cli.commands if name != "static"), ["static", "list"])
    ],
)
def test_no_help_text_is_longer_than_four_lines(command):
    shown = run(*command, "--help", COLUMNS="80").output
    rows = re.findall(r"^  ((?:-|MODULE:).*)\n((?: {5,}\S.*\n)*)", shown.partition(":\n")[2], re.MULTILINE)
    assert len(rows) > (len(OPTIONS) if command == ["serve"] else 0)
    for flags, rest in rows:
        lines = rest.count("\n") + bool(re.search(r"\S  +\S", flags))
        assert 1 <= lines <= 4, flags
    assert max(map(len, shown.partition("Examples:")[0].splitlines())) <= 80


@pytest.mark.parametrize("arguments", [[], ["doctor"], ["static", "list"]], ids=" ".join)
def test_the_word_help_shows_the_help(arguments):
    assert run("help", *arguments).output == run(*arguments, "--help").output


@pytest.mark.parametrize("group", [[], ["static"]], ids=" ".join)
def test_each_command_has_a_whole_sentence_in_80_columns(group):
    lines = run(*group, "--help", COLUMNS="80").output.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert lines
    assert all(re.fullmatch(r"  [a-z]+ +[A-Z].*[^.]\.", line) for line in lines), lines


def test_help_of_serve_shows_every_option_under_its_group():
    shown = run("serve", "--help").output
    for option in OPTIONS:
        group = shown.index(f"\n{option.group}:\n")
        name = option.kind.metavar if option.positional else option.flag
        assert re.search(rf"{re.escape(f'{option.short}, ' if option.short else '')}{re.escape(name)}\b", shown[group:])
    assert re.search(r"\[default:\s+127\.0\.0\.1:8000\]", shown)


def test_serve_is_the_default_command(monkeypatch):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **service: served.append(settings))
    for arguments in (["shop:app"], ["serve", "shop:app"], ["--threads", "3", "shop:app"], ["shop:app", "--threads=3"]):
        assert run(*arguments).exit_code == 0
    assert [settings["app"].value for settings in served] == ["shop:app"] * 4
    assert [settings["threads"].value for settings in served] == [128, 128, 3, 3]


def test_the_application_can_come_from_environment_or_file(monkeypatch, directory):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **service: served.append(settings))
    (directory / "tailrace.toml").write_text('app = "filed:app"\n')
    assert run().exit_code == 0
    assert run(TAILRACE_APP="shop:app").exit_code == 0
    assert [settings["app"].value for settings in served] == ["filed:app", "shop:app"]


def test_without_an_application_the_usage_is_explained(monkeypatch, capsys):
    status, shown = failing(monkeypatch, capsys)
    assert status == 2
    assert shown.startswith(cli.get_help(Context(cli, info_name="tailrace", **CONTEXT)))
    *_, error, hint = shown.splitlines()
    assert error.startswith("tailrace: error: no application: name one")
    assert hint == "`tailrace serve --help` shows the usage"
    assert failing(monkeypatch, capsys, "serve") == (2, f"{error}\n{hint}\n")


def test_short_flags_and_negations(monkeypatch, directory):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **service: served.append(settings))
    (directory / "tailrace.toml").write_text("debug = true\n")
    run("shop:app", "-w", "5", "-b", ":80", "--bind", "[::]:80", "--no-debug")
    assert served[0]["bind"] == ((":80", "[::]:80"), "command line: --bind")
    assert served[0]["workers"].value == 5
    assert served[0]["debug"].value is False


@pytest.mark.parametrize(
    "command",
    [cli.commands["serve"], cli.commands["config"]],
    ids=lambda command: command.name,
)
def test_each_command_takes_the_same_spellings(command):
    parameters = {each.name: each for each in command.params}
    for option in OPTIONS:
        if not option.positional:
            assert set(parameters[option.name].opts) == {option.flag, option.short} - {""}
            negation = [f"--no-{option.flag[2:]}"] if isinstance(option.default, bool) else []
            assert parameters[option.name].secondary_opts == negation
    assert {option.short for option in OPTIONS} == {"", "-b", "-w"}


def test_short_flags_of_a_command_that_does_not_serve():
    shown = json.loads(run("config", "-b", ":80", "-w", "3", "--format", "json").stdout)
    assert shown["bind"] == {"value": [":80"], "source": "command line: --bind"}
    assert shown["workers"]["value"] == 3


# At least one of each command; what each says, or "" where only its form matters.
MISTAKES = [
    (["serve"], 2, "no application: name one"),
    (["shop:app", "--threads", "0"], 2, "--threads '0': must be at least 1"),
    (["shop:app", "--max-body", "lots"], 2, "--max-body 'lots': must be a size"),
    (["shop:app", "--bind", "localhost"], 2, "--bind 'localhost': not an address; write localhost:8000"),
    (["shop:app", "--chdir", "absent"], 2, "--chdir 'absent': No such file or directory; name a directory that this"),
    (["shop:app", "--config", "absent.toml"], 2, "absent.toml: no such file"),
    (["shop:app", "--tread", "1"], 2, "no such option: --tread; did you mean --threads?"),
    (["shop:app", "--no-debg"], 2, "did you mean --no-debug?"),
    (["shop:app", "--debug=1"], 2, "option '--debug' does not take a value"),
    (["--version=3"], 2, ""),
    (["shop:app", "--access-log-format", "jsn"], 2, "--access-log-format 'jsn': unknown format; did you mean json?"),
    (["shop:app", "--access-log-format", "%(z)s"], 2, "'%(z)s': unknown atom %(z)s; choose from h"),
    (["shop:app", "surplus"], 2, "can be served, but there are several arguments: 'shop:app', 'surplus'"),
    (["run", "shop:app"], 2, "arguments: 'run', 'shop:app'; did you mean `tailrace serve shop:app`?"),
    (["start", "shop:app", "--threads", "2"], 2, "; did you mean `tailrace serve shop:app`?"),
    (["srve", "shop:app"], 2, "'srve', 'shop:app'; did you mean `tailrace serve shop:app`?"),
    (["doctr"], 3, "install its package; did you mean `tailrace doctor`?"),
    (["shp:app"], 3, "no module named 'shp'"),
    (["docter", "shop:app"], 2, "; did you mean `tailrace doctor shop:app`?"),
    (["statc", "list"], 2, "; did you mean `tailrace static list`?"),
    (["serve", "srve", "shop:make(1)"], 2, "; did you mean `tailrace serve 'shop:make(1)'`?"),
    (["doctor", "srve", "shop:app"], 2, "several arguments: 'srve', 'shop:app'"),
    (["shop:app", "--prot", "80"], 2, "no such option: --prot; Tailrace calls it --bind"),
    (["shop:app", "-k", "1"], 2, "no such option: -k; requests run in threads by default; --gevent"),
    (["shop:app", "--url-alias", "/a", "b"], 2, "calls it --static, with path and folder: /static=FOLDER"),
    (["shop:app", "--static", "assets=x"], 2, "'assets=x': must begin with a slash, like any URL path: /assets=x"),
    (["shop:app", "--static", "/a=absent"], 2, "--static /a=absent: the folder "),
    (["shop:app", "--static", "/a=absent", "--debug"], 2, "--static /a=absent: the folder "),
    (["shop:app", "--access-log", "--bind", ":1"], 2, "--bind was read as that value; `--access-log -` writes to stan"),
    (["shop:app", "--max-body", "--threads=3"], 2, "--max-body takes a value, and --threads=3 was read as"),
    (["shop:app", "--threads", "-b", ":80"], 2, "--threads takes a value, and -b was read as that value; give"),
    (["shop:app", "--bind"], 2, "--bind needs a value: --bind ADDRESS"),
    (["shop:app", "--max_body", "5"], 2, "no such option: --max_body; did you mean --max-body?"),
    (["shop:app", "--reload", "--reload-include", "/*.html"], 2, "'/*.html': every file on this machine would"),
    (["shop:app", "--reload", "--reload-include", "no/x/*"], 2, "does not exist; create it, or correct the path"),
    (["absent:app", "--bind", "127.0.0.1:0"], 3, "no module named 'absent'"),
    (["./absent.py", "--bind", "127.0.0.1:0"], 3, "./absent.py: no such file"),
    (["shop:app", "--bind", "fd://987"], 1, "cannot listen on fd://987"),
    (["config", "--access-log", "-", "--threads", "0"], 2, "--threads '0': must be at least 1"),
    (["config", "--access-log=--bind", "--threads", "0"], 2, "--threads '0': must be at least 1"),
    (["config", "--nope"], 2, ""),
    (["config", "--format", "xml"], 2, ""),
    (["config", "--config", "absent.toml"], 2, "absent.toml: no such file"),
    (["config", "a:b", "c:d"], 2, "several arguments"),
    (["config", "--log", "a", "--log-config", "b"], 2, "--log (command line: --log) cannot be combined with --log-con"),
    (["doctor"], 2, ""),
    (["doctor", "shop:absent"], 3, "shop has no 'absent'"),
    (["doctor", "shop:app", "--ur", "/"], 2, "no such option: --ur; did you mean --url?\n`tailrace doctor --help`"),
    (["doctor", "shop:app", "--unheard"], 2, "no such option: --unheard\n`tailrace doctor --help` shows"),
    (["doctor", "--times", "0"], 2, "--times: 0 is not in the range 1<=x<=100"),
    (["doctor", "shop:app", "--times", "x"], 2, ""),
    (["doctor", "--live", "--status", "unix:/nowhere/s"], 2, ""),
    (["static"], 2, "no command given; choose from list"),
    (["static", "lst"], 2, "no such command: tailrace static lst; did you mean list?"),
    (["static", "--json"], 2, "no such option: --json\n`tailrace static --help` shows"),
    (["static", "list"], 2, "no folder to serve"),
    (["static", "list", "--nope"], 2, ""),
    (["static", "list", "--static", "/=absent"], 2, ""),
    (["publish"], 2, "CHANNEL is missing"),
    (["publish", "news"], 2, "DATA is missing\n`tailrace publish --help` shows"),
    (["publish", "news", "x"], 2, "no address; start the server with --publish-bind 127.0.0.1:5561, and use the same"),
    (["publish", "news", "x", "--evnt", "a"], 2, "no such option: --evnt; did you mean --event?"),
    (["publish", "news", "x", "y"], 2, "unexpected argument: y"),
    (["publish", "news", "x", "--to", "unix:/nowhere/s"], 1, "No such file or directory; start the server with --pub"),
    (["publish", "news", "x", "--to", "uwsgi://a:1"], 1, "cannot publish to uwsgi://a:1: write host:port, unix:/path"),
    (["publish", "news", "x", "--to", "a"], 1, "write a:5561"),
    (["publish", "news", "x", "--to", "fd://3"], 1, "a file descriptor is not an address; write host:port"),
    (["publish", "news", "x", "--to", ":1", "--id", "a\nb"], 2, "id must not contain a line break"),
    (["publish", "news", "\udcff", "--to", ":1"], 2, "DATA is not UTF-8; encode binary data"),
    (["threads"], 2, ""),
    (["threads", "--statsu", "x"], 2, "no such option: --statsu; did you mean --status?\n`tailrace threads --help`"),
    (["threads", "--status", "fd://3"], 2, "'fd://3': write host:port, https://host:port, or unix:/path"),
    (["threads", "--status", "https://unix:/s"], 2, "': write host:port, https://host:port, or unix:/path"),
    (["threads", "--status", "http://a:1"], 2, "not an address; omit the scheme, as in"),
    (["threads", "--status", "unix:/nowhere/s"], 1, ""),
    (["threads", "--pid"], 2, "--pid needs a value: --pid PID"),
    (["threads", "--pid", "x"], 2, ""),
    (["threads", "--pid", "1", "--status", "unix:/nowhere/s"], 2, ""),
    (["threads", "4711"], 2, "unexpected argument: 4711\n`tailrace threads --help` shows"),
    (["top"], 2, ""),
    (["top", "--status", "unix:/nowhere/s"], 2, ""),
    (["top", "--interval", "0"], 2, ""),
    (["trace"], 2, "SCRIPT is missing"),
    (["trace", "gill"], 2, "SCRIPT: 'gill' is not one of 'latency',"),
    (["trace", "gil", "--over", "x"], 2, ""),
    (["trace", "calls", "--over", "1s"], 2, ""),
    (["migrate"], 2, ""),
    (["migrate", "absent.ini"], 2, ""),
    (["migrate", "a", "b"], 2, ""),
    (["compare", "--secnds", "3"], 2, "no such option: --secnds; did you mean --seconds?\n`tailrace compare --help`"),
    (["compare", "--seconds", "0"], 2, ""),
    (["compare", "--rounds", "--quick"], 2, "--rounds takes a value, and --quick was read as that value; give"),
    (["compare", "--render", "--output", "absent"], 2, ""),
]


def needs_tools(arguments):
    """Whether a package must be installed for it: for its command, or for what another server calls our option."""
    return arguments[0] in OF_PACKAGES or not {"--prot", "-k", "--url-alias"}.isdisjoint(arguments)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        pytest.param(*each, id=" ".join(each[0]), marks=[with_tools] if needs_tools(each[0]) else [])
        for each in MISTAKES
    ],
)
def test_a_mistake_is_one_line_of_the_same_form_and_a_status(
    monkeypatch, capsys, directory, arguments, status, message
):
    (directory / "shop.py").write_text("def app(environ, start_response): return []\n")
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (status, "")
    # On a slow machine the log says that it loads the application.
    said = re.sub(r".* INFO: loading .*\n", "", shown.err)
    assert message in said
    first, *hints = said.splitlines()
    assert re.fullmatch(r"tailrace: error: \S.*[^.]", first)
    assert len(hints) <= 1
    assert all(re.fullmatch(r"`tailrace( [a-z]+)+ --help` shows the usage", line) for line in hints)
    assert not re.search(r"Usage:|Error:|Try '|\[Errno", first)


def test_a_mistake_of_every_command_is_among_them():
    assert {arguments[0] for arguments, _, _ in MISTAKES} >= set(cli.commands)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (name, "top" if name == "top" else "tools")
        for name in ("doctor", "migrate", "static", "threads", "top", "trace")
    ],
)
def test_a_tool_says_how_it_is_installed(monkeypatch, capsys, command, extra):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **chosen: ())
    message = f"tailrace: error: `tailrace {command}` is not installed; `pip install 'tailrace[{extra}]'`\n"
    assert failing(monkeypatch, capsys, command, "--help") == (2, message)


class Publications:
    """A server in a thread, and a stream that is held on a channel."""

    def __init__(self, place):
        self.place = place

    @contextlib.contextmanager
    def served(self):
        def app(environ, start_response):
            start_response("200 OK", [("Content-Type", "text/event-stream"), *tailrace.hold("news").items()])
            return [b": open\n\n"]

        with (
            tailrace.serve_in_thread(app, publish_bind=self.place) as server,
            urllib.request.urlopen(server.url, timeout=60) as self.stream,
        ):
            assert self.event() == [": open"]
            yield self

    def event(self):
        """The lines of the next event."""
        return [line.decode().rstrip("\n") for line in iter(self.stream.readline, b"\n")]


@pytest.fixture
def publications(directory):
    with Publications(f"unix:{directory}/publish?mode=600").served() as served:
        yield served


def test_an_event_is_published_unchanged_and_its_id_is_printed(publications):
    data = '{ "id": 7,\t"name": "\\u00e9é" }'
    status, said, fault = ended("publish", "news", data, "--event", "changed", "--id", "41", "--to", publications.place)
    assert (status, said, fault) == (0, "41\n", "")
    assert publications.event() == ["event: changed", "id: 41", f"data: {data}"]


@pytest.mark.parametrize(
    "variables",
    [
        {"TAILRACE_PUBLISH_BIND": "{}"},
        {"TAILRACE_PUBLISH_URL": "{}", "TAILRACE_PUBLISH_BIND": "unix:/nowhere/s"},
        {"TAILRACE_PUBLISH_BIND": "{},127.0.0.1:1"},
    ],
    ids=" ".join,
)
def test_the_address_is_that_of_a_variable(publications, variables):
    environ = os.environ | {name: value.format(publications.place) for name, value in variables.items()}
    status, said, fault = ended("publish", "news", "-", input=b"one\r\n\ntwo\r\n", env=environ)
    assert (status, fault) == (0, "")
    assert publications.event() == [f"id: {said.strip()}", "data: one", "data: ", "data: two"]


def test_data_of_standard_input_must_be_text(publications):
    status, _, fault = ended("publish", "news", "-", "--to", publications.place, input=b"\xff")
    assert (status, fault.partition(";")[0]) == (2, "tailrace: error: standard input is not UTF-8")


def test_a_channel_that_the_server_rejects_is_an_error(publications):
    status, _, fault = ended("publish", "", "x", "--to", publications.place)
    assert status == 1
    assert fault.startswith(f"tailrace: error: {publications.place} rejected the event: 400 ")


def ended(*arguments, **streams):
    """A command that ends by itself, as a process."""
    command = [sys.executable, "-m", "tailrace", *arguments]
    done = subprocess.run(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}, timeout=60)
    return done.returncode, (done.stdout or b"").decode(), (done.stderr or b"").decode()


@pytest.fixture
def broken_pipe():
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


PRINTING = pytest.mark.parametrize(
    "arguments", [["--help"], ["serve", "--help"], ["--version"], ["config"]], ids=" ".join
)


@PRINTING
def test_a_reader_that_has_gone_ends_the_output_silently(broken_pipe, arguments):
    assert ended(*arguments, stdout=broken_pipe) == (1, "", "")


@PRINTING
def test_output_that_cannot_be_written_is_an_error(arguments):
    with open("/dev/full", "w") as full:
        status, _, said = ended(*arguments, stdout=full)
    assert (status, said) == (
        1,
        "tailrace: error: cannot write to standard output: No space left on device; "
        "redirect the output to another file\n",
    )


def test_text_that_the_output_cannot_take_is_an_error():
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    status, _, said = ended("config", "--chdir", b"caf\xe9", env=environ)
    assert status == 1
    assert said.startswith("tailrace: error: cannot write to standard output: utf-8 has no ")
    assert said.count("\n") == 1


@PRINTING
def test_closed_standard_streams_are_no_error(arguments):
    assert ended(*arguments, preexec_fn=lambda: os.close(1)) == (0, "", "")
    status, shown, _ = ended(*arguments, preexec_fn=lambda: os.close(2))
    assert status == 0
    assert shown


def test_an_error_that_nobody_reads_has_its_status(broken_pipe):
    assert ended("config", "--nope", stderr=broken_pipe) == (2, "", "")
    assert ended("config", "--nope", preexec_fn=lambda: os.close(2)) == (2, "", "")


def test_a_variable_that_is_no_option_is_a_warning_and_not_the_end(monkeypatch, directory):
    environ = {"TAILRACE_TREADS": "3", "TAILRACE_SERVICE_HOST": "10.0.0.1", "TAILRACE_PORT": "tcp://10.0.0.1:80"}
    shown = run("config", **environ)
    assert shown.exit_code == 0
    assert shown.stderr.splitlines() == [
        "tailrace: warning: the variable TAILRACE_TREADS is ignored: there is no such option; did you mean "
        "TAILRACE_THREADS?"
    ]
    parse_toml(shown.stdout)
    monkeypatch.setattr(master, "serve", lambda settings, **service: 0)
    assert "WARNING: the variable TAILRACE_TREADS is ignored" in run("shop:app", **environ).stderr
    shown = run("shop:app", GUNICORN_CMD_ARGS="--workers 4")
    assert shown.stderr.count("the variable GUNICORN_CMD_ARGS is ignored: convert it with `tailrace migrate") == 1
    assert "GUNICORN_CMD_ARGS" not in run("shop:app", GUNICORN_CMD_ARGS=" ").stderr
    (directory / "app.env").write_text("TAILRACE_TREADS=3\n")
    assert run("shop:app", "--env-file", "app.env").stderr.count("TAILRACE_TREADS is ignored") == 1


@pytest.mark.nightly(gate=6)
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["shop:app", "--config", "closed/x.toml"], 2, r"closed/x\.toml: cannot be read: Permission denied; check"),
        (["shop:app", "--config", "unread.toml"], 2, r"unread\.toml: cannot be read: Permission denied; check"),
        (["shop:app", "--config", "closed"], 2, "closed: (this is a directory; name the file in it|cannot be read)"),
        (["shop:app", "--hooks", "closed/hooks.py"], 3, r"closed/hooks\.py: cannot be read: Permission denied"),
        (["shop:app", "--hooks", "./unread.py"], 3, r"\./unread\.py: cannot be read: Permission denied"),
        (["shop:app", "--hooks", "unread"], 3, r"unread: .*/unread\.py cannot be read: Permission denied"),
        (["shop:app", "--env-file", "unread.env"], 2, r"unread\.env: cannot be read: Permission denied"),
        (["shop:app", "--pidfile", "unread.pid"], 2, r"unread\.pid: cannot be read: Permission denied"),
        (["shop:app", "--pidfile", "closed/x.pid"], 2, r"closed/x\.pid: cannot be read: Permission denied"),
        (["shop:app", "--access-log", "closed/x.log"], 2, r"--access-log /.*/closed/x\.log: Permission denied"),
        (
            ["shop:app", "--access-log", "/absent/x"],
            2,
            "--access-log /absent/x: the directory /absent does not exist; create it",
        ),
        (
            ["shop:app", "--access-log", "/absent/x", "--debug"],
            2,
            "--access-log /absent/x: the directory /absent does not exist; create it",
        ),
        (["shop:app", "--chdir", "closed"], 2, "--chdir 'closed': Permission denied"),
        (["closed/shop.py"], 3, r"closed/shop\.py: cannot be read: Permission denied"),
        (["./unread.py"], 3, r"\./unread\.py: cannot be read: Permission denied"),
        (["unread:app"], 3, r"unread: .*/unread\.py cannot be read: Permission denied"),
        (["closed:app"], 3, "the directory .*/closed cannot be read: Permission denied"),
        (["closed.shop:app"], 3, "the directory .*/closed cannot be read: Permission denied"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_path(command, directory, arguments, status, message):
    (directory / "shop.py").write_text("def app(environ, start_response): return []\n")
    for name in ("unread.toml", "unread.py", "unread.env", "unread.pid"):
        (directory / name).write_text("")
        (directory / name).chmod(0)
    (directory / "closed").mkdir()
    (directory / "closed").chmod(0)
    server = command(*arguments, "--bind", "127.0.0.1:0")
    assert server.end() == status
    (said,) = server.seen
    assert re.match("tailrace: error: ", said)
    assert re.search(message, said)


@pytest.fixture
def elsewhere(directory):
    """A directory with an application in it, and an empty one beside it."""
    for name in ("elsewhere", "here"):
        (directory / name).mkdir()
    (directory / "elsewhere" / "shop.py").write_text("def app(environ, start_response): return []\n")
    return directory / "elsewhere"


@pytest.mark.parametrize("arguments", [("shop:app", "--chdir", "{}"), ("{}/shop.py",)])
def test_a_current_directory_that_cannot_be_searched_is_no_obstacle(command, elsewhere, arguments):
    """Fails when looking for settings files, or going where one is already, ends the start."""
    given = [text.format(elsewhere) for text in arguments]
    here = elsewhere.parent / "here"
    server = command(*given, "--bind", "127.0.0.1:0", directory=here, prepare=lambda: os.chmod(".", 0))
    server.until(f"WARNING: cannot look for a settings file in {here}: Permission denied")
    server.until(" ready in ")
    server.process.terminate()
    assert server.end() == 0


def test_a_current_directory_that_was_removed_is_named(command, elsewhere):
    def start(*arguments):
        here = elsewhere.parent / "here"
        here.mkdir(exist_ok=True)
        return command(*arguments, "--bind", "127.0.0.1:0", directory=here, prepare=lambda: os.rmdir(here))

    server = start("shop:app")
    assert server.end() == 2
    (said,) = server.seen
    assert said.startswith("tailrace: error: cannot use the current directory: No such file or directory")
    server = start("shop:app", "--chdir", str(elsewhere))
    server.until(" ready in ")
    server.process.terminate()
    assert server.end() == 0


def test_a_failure_inside_the_application_shows_its_traceback(monkeypatch, capsys, directory):
    (directory / "broken.py").write_text("import absent_library\n")
    status, shown = failing(monkeypatch, capsys, "broken:app", "--bind", "127.0.0.1:0")
    assert status == 3
    assert re.match(r"(.* INFO: loading .*\n)?Traceback \(most recent call last\):\n", shown)
    assert shown.endswith("error: importing broken failed: ModuleNotFoundError: No module named 'absent_library'\n")


def test_config_prints_what_is_in_effect_and_its_source(directory):
    (directory / "tailrace.toml").write_text("max_queue = 64\n")
    shown = run("config", "shop:app", "--threads", "4", TAILRACE_MAX_BODY="10MiB").output
    for line in (
        r'app = "shop:app" +# command line: MODULE:CALLABLE',
        r"threads = 4 +# command line: --threads",
        r'max_body = "10MiB" +# TAILRACE_MAX_BODY',
        r"max_queue = 64 +# tailrace.toml",
        r"# access_log is unset +# default",
    ):
        assert re.search(rf"^{line}$", shown, re.MULTILINE), line


def test_config_prints_a_file_that_reads_back_the_same(directory):
    given = [
        "--umask",
        "027",
        "--max-body",
        "1000",
        "--write-timeout",
        "1.5",
        "--access-log-format",
        '{method} "{path}" # \u00e9',
    ]
    first = run("config", *given).output
    parse_toml(first)
    (directory / "tailrace.toml").write_text(first)
    as_json = json.loads(run("config", "--format", "json", *given).output)
    again = json.loads(run("config", "--format", "json").output)
    assert {name: entry["value"] for name, entry in again.items()} == {
        name: entry["value"] for name, entry in as_json.items()
    }
    assert again["umask"] == {"value": "0o027", "source": "tailrace.toml"}
    assert set(again) == {option.name for option in OPTIONS}
