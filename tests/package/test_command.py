"""The `tailrace` command: usage errors, exit statuses, `tailrace config`."""

import json
import os
import re
import subprocess
import sys

import pytest
from click import Context
from click.testing import CliRunner
from harness.toml import parse_toml

import tailrace
from tailrace.cli.arguments import CONTEXT
from tailrace.cli.options import BY_NAME, COMMON, OPTIONS
from tailrace.command import cli, main
from tailrace.logs.log import logger
from tailrace.master import main as master


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


def test_help_shows_the_commands_the_main_options_and_examples():
    for flag in ("--help", "-h"):
        shown = run(flag).output
        assert all(f"\n  {name} " in shown for name in cli.commands)
        flags = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)
        assert flags == [*(BY_NAME[name].flag for name in COMMON), "--config", "--version", "--help"]
        assert "tailrace mysite.wsgi" in shown
        assert re.search("^  Exit status:\n    0 ", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "command", [[], *([name] for name in cli.commands if name != "static"), ["static", "list"]], ids=" ".join
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
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: served.append(settings))
    for arguments in (["shop:app"], ["serve", "shop:app"], ["--threads", "3", "shop:app"], ["shop:app", "--threads=3"]):
        assert run(*arguments).exit_code == 0
    assert [settings["app"].value for settings in served] == ["shop:app"] * 4
    assert [settings["threads"].value for settings in served] == [128, 128, 3, 3]


def test_the_application_can_come_from_environment_or_file(monkeypatch, directory):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: served.append(settings))
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


def test_a_repeated_address_is_a_list(monkeypatch):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: served.append(settings))
    run("shop:app", "-b", ":80", "--bind", "[::]:80")
    assert served[0]["bind"] == ((":80", "[::]:80"), "command line: --bind")


def test_short_flags_and_negations(monkeypatch, directory):
    served = []
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: served.append(settings))
    (directory / "tailrace.toml").write_text("debug = true\n")
    run("shop:app", "-w", "5", "--no-debug")
    assert served[0]["workers"].value == 5
    assert served[0]["debug"].value is False


@pytest.mark.parametrize("path", [["serve"], ["config"], ["doctor"], ["static", "list"]], ids=" ".join)
def test_each_command_takes_the_same_spellings(path):
    command = cli
    for name in path:
        command = command.commands[name]
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


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["shop:app", "--threads", "0"], 2, "tailrace: error: --threads '0': must be at least 1\n"),
        (["shop:app", "--max-body", "lots"], 2, "tailrace: error: --max-body 'lots': must be a size"),
        (
            ["shop:app", "--bind", "localhost"],
            2,
            "tailrace: error: --bind 'localhost': not an address; write localhost:8000\n",
        ),
        (
            ["shop:app", "--chdir", "absent"],
            2,
            "tailrace: error: --chdir 'absent': No such file or directory; name a directory that this user can enter\n",
        ),
        (["shop:app", "--config", "absent.toml"], 2, "tailrace: error: absent.toml: no such file"),
        (["shop:app", "--tread", "1"], 2, "tailrace: error: no such option: --tread; did you mean --threads?\n"),
        (["shop:app", "--no-debg"], 2, "did you mean --no-debug?"),
        (
            ["shop:app", "--access-log-format", "jsn"],
            2,
            "tailrace: error: --access-log-format 'jsn': unknown format; did you mean json?",
        ),
        (
            ["shop:app", "--access-log-format", "%(z)s"],
            2,
            "--access-log-format '%(z)s': unknown atom %(z)s; choose from h",
        ),
        (
            ["shop:app", "surplus"],
            2,
            "only one application can be served, but there are several arguments: 'shop:app', 'surplus'",
        ),
        (["surplus", "shop:app"], 2, "several arguments: 'surplus', 'shop:app'\n"),
        (["run", "shop:app"], 2, "arguments: 'run', 'shop:app'; did you mean `tailrace serve shop:app`?\n"),
        (["start", "shop:app", "--threads", "2"], 2, "; did you mean `tailrace serve shop:app`?\n"),
        (["srve", "shop:app"], 2, "'srve', 'shop:app'; did you mean `tailrace serve shop:app`?\n"),
        (["docter", "shop:app"], 2, "; did you mean `tailrace doctor shop:app`?\n"),
        (["statc", "list"], 2, "; did you mean `tailrace static list`?\n"),
        (["serve", "srve", "shop:make(1)"], 2, "; did you mean `tailrace serve 'shop:make(1)'`?\n"),
        (["doctor", "srve", "shop:app"], 2, "several arguments: 'srve', 'shop:app'\n"),
        (["shop:app", "--prot", "80"], 2, "no such option: --prot; Tailrace calls it --bind"),
        (
            ["shop:app", "--static-map", "/a=b"],
            2,
            "no such option: --static-map; Tailrace calls it --static, which answers 404",
        ),
        (["shop:app", "--check-static", "b"], 2, "no such option: --check-static; Tailrace calls it --overlay\n"),
        (["shop:app", "--static-path-mount", "b"], 2, "--static-path-mount; Tailrace calls it --static, with"),
        (["shop:app", "--static-path-route", "b"], 2, "--static-path-route; Tailrace calls it --static, with"),
        (["shop:app", "--document-root", "b"], 2, "no such option: --document-root; Tailrace calls it --overlay\n"),
        (
            ["shop:app", "--url-alias", "/a", "b"],
            2,
            "no such option: --url-alias; Tailrace calls it --static, with path and folder: /static=FOLDER\n",
        ),
        (
            ["shop:app", "--static", "assets=x"],
            2,
            "tailrace: error: --static 'assets=x': must begin with a slash, like any URL path: /assets=x\n",
        ),
        (
            ["shop:app", "--access-log", "--bind", "127.0.0.1:8323"],
            2,
            "--access-log takes a value, and --bind was read as that value; "
            "`--access-log -` writes to standard output\n",
        ),
        (["shop:app", "--max-body", "--threads=3"], 2, "--max-body takes a value, and --threads=3 was read as"),
        (["shop:app", "--threads", "-b", ":80"], 2, "--threads takes a value, and -b was read as that value; give"),
        (["shop:app", "--bind"], 2, "tailrace: error: --bind needs a value: --bind ADDRESS\n"),
        (["config", "--access-log", "-", "--threads", "0"], 2, "--threads '0': must be at least 1\n"),
        (["config", "--access-log=--bind", "--threads", "0"], 2, "--threads '0': must be at least 1\n"),
        (["doctor", "shop:app", "--ur", "/"], 2, "no such option: --ur; did you mean --url?\n`tailrace doctor --help`"),
        (["doctor", "shop:app", "--unheard"], 2, "no such option: --unheard\n`tailrace doctor --help` shows"),
        (["doctor", "--times", "0"], 2, "tailrace: error: --times: 0 is not in the range 1<=x<=100\n"),
        (
            ["threads", "--statsu", "x"],
            2,
            "no such option: --statsu; did you mean --status?\n`tailrace threads --help`",
        ),
        (["threads", "--status", "fd://3"], 2, "'fd://3': write host:port, https://host:port, or unix:/path\n"),
        (["threads", "--status", "https://unix:/s"], 2, "': write host:port, https://host:port, or unix:/path\n"),
        (["threads", "--status", "http://a:1"], 2, "not an address; omit the scheme, as in"),
        (["threads", "--pid"], 2, "tailrace: error: --pid needs a value: --pid PID\n"),
        (["threads", "--unheard"], 2, "tailrace: error: no such option: --unheard\n"),
        (["threads", "4711"], 2, "tailrace: error: unexpected argument: 4711\n`tailrace threads --help` shows"),
        (["top", "--statsu", "x"], 2, "no such option: --statsu; did you mean --status?\n`tailrace top --help`"),
        (["trace"], 2, "tailrace: error: SCRIPT is missing\n"),
        (["shop:app", "--keep-alive", "5"], 2, "no such option: --keep-alive; Tailrace calls it --idle-timeout\n"),
        (["shop:app", "--max_body", "5"], 2, "no such option: --max_body; did you mean --max-body?\n"),
        (["shop:app", "--debug=1"], 2, "tailrace: error: option '--debug' does not take a value\n"),
        (["static", "--json"], 2, "tailrace: error: no such option: --json\n`tailrace static --help` shows"),
        (
            ["compare", "--secnds", "3"],
            2,
            "no such option: --secnds; did you mean --seconds?\n`tailrace compare --help`",
        ),
        (["compare", "a:b", "c"], 2, "tailrace: error: unexpected argument: c\n`tailrace compare --help` shows"),
        (["compare", "--rounds", "0"], 2, "tailrace: error: --rounds: 0 is not in the range 1<=x<=1000\n"),
        (
            ["compare", "--rounds", "--quick"],
            2,
            "--rounds takes a value, and --quick was read as that value; give",
        ),
        (["shop:app", "--reload", "--reload-include", "/*.html"], 2, "'/*.html': every file on this machine would"),
        (["shop:app", "--reload", "--reload-include", "no/x/*"], 2, "does not exist; create it, or correct the path"),
        (["trace", "gill"], 2, "tailrace: error: SCRIPT: 'gill' is not one of 'latency',"),
        (["static", "lst"], 2, "tailrace: error: no such command: tailrace static lst; did you mean list?\n"),
        (["absent:app", "--bind", "127.0.0.1:0"], 3, "tailrace: error: no module named 'absent'"),
        (["./absent.py", "--bind", "127.0.0.1:0"], 3, "tailrace: error: ./absent.py: no such file"),
        (["shop:app", "--bind", "fd://987"], 1, "tailrace: error: cannot listen on fd://987"),
    ],
)
def test_a_mistake_is_one_line_and_a_status(monkeypatch, capsys, directory, arguments, status, message):
    (directory / "shop.py").write_text("def app(environ, start_response): return []\n")
    ended, shown = failing(monkeypatch, capsys, *arguments)
    assert ended == status
    assert message in shown
    assert "Traceback" not in shown


# At least one of each command.
ERRORS = [
    (["serve"], 2),
    (["serve", "--nope"], 2),
    (["serve", "absent:app", "--bind", "127.0.0.1:0"], 3),
    (["absent", "--bind", "127.0.0.1:0"], 3),
    (["docter", "shop:app"], 2),
    (["shop:app", "--bind", "fd://987"], 1),
    (["--version=3"], 2),
    (["config", "--nope"], 2),
    (["config", "--threads", "x"], 2),
    (["config", "--format", "xml"], 2),
    (["config", "--config", "absent.toml"], 2),
    (["config", "a:b", "c:d"], 2),
    (["doctor"], 2),
    (["doctor", "shop:absent"], 3),
    (["doctor", "shop:app", "--times", "x"], 2),
    (["doctor", "--live", "--status", "unix:/nowhere/s"], 2),
    (["static"], 2),
    (["static", "lst"], 2),
    (["static", "--nope"], 2),
    (["static", "list"], 2),
    (["static", "list", "--nope"], 2),
    (["static", "list", "--static", "/=absent"], 2),
    (["threads"], 2),
    (["threads", "--pid", "x"], 2),
    (["threads", "--pid", "1", "--status", "unix:/nowhere/s"], 2),
    (["threads", "--status", "unix:/nowhere/s"], 1),
    (["top"], 2),
    (["top", "--status", "unix:/nowhere/s"], 2),
    (["top", "--interval", "0"], 2),
    (["trace"], 2),
    (["trace", "nope"], 2),
    (["trace", "gil", "--over", "x"], 2),
    (["trace", "calls", "--over", "1s"], 2),
    (["migrate"], 2),
    (["migrate", "absent.ini"], 2),
    (["migrate", "a", "b"], 2),
    (["compare", "--nope"], 2),
    (["compare", "--seconds", "0"], 2),
    (["compare", "--render", "--output", "absent"], 2),
]


@pytest.mark.parametrize(("arguments", "status"), ERRORS, ids=[" ".join(each) for each, _ in ERRORS])
def test_every_error_has_the_same_form(monkeypatch, capsys, directory, arguments, status):
    (directory / "shop.py").write_text("def app(environ, start_response): return []\n")
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (status, "")
    first, *rest = shown.err.splitlines()
    assert re.fullmatch(r"tailrace: error: \S.*[^.]", first)
    assert all(re.fullmatch(r"`tailrace( [a-z]+)+ --help` shows the usage", line) for line in rest)
    assert len(rest) <= 1
    assert not re.search(r"Usage:|Error:|Try '|\[Errno", first)


def test_an_error_of_every_command_is_provoked():
    assert {arguments[0] for arguments, _ in ERRORS} >= set(cli.commands)


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


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--port", "Tailrace calls it --bind"),
        ("-k", "requests run in threads by default; --gevent"),
        ("--worker-class", "requests run in threads by default; --gevent"),
        ("--timeout", "--request-timeout limits the time of a request"),
        ("--forwarded-allow-ips", "Tailrace calls it --trusted-proxies"),
        ("--daemon", "stays in the foreground"),
        ("--ssl-version", "speaks TLS at addresses that begin with https://"),
    ],
)
def test_an_option_of_another_server_is_told_what_it_is_called_here(monkeypatch, capsys, flag, message):
    status, shown = failing(monkeypatch, capsys, "shop:app", flag, "1")
    assert status == 2
    assert f"no such option: {flag}; " in shown
    assert message in shown


def test_a_variable_that_is_no_option_is_a_warning_and_not_the_end(monkeypatch, directory):
    environ = {"TAILRACE_TREADS": "3", "TAILRACE_SERVICE_HOST": "10.0.0.1", "TAILRACE_PORT": "tcp://10.0.0.1:80"}
    shown = run("config", **environ)
    assert shown.exit_code == 0
    assert shown.stderr.splitlines() == [
        "tailrace: warning: the variable TAILRACE_TREADS is ignored: there is no such option; did you mean "
        "TAILRACE_THREADS?"
    ]
    parse_toml(shown.stdout)
    monkeypatch.setattr(master, "serve", lambda settings, **surroundings: 0)
    assert "WARNING: the variable TAILRACE_TREADS is ignored" in run("shop:app", **environ).stderr
    (directory / "app.env").write_text("TAILRACE_TREADS=3\n")
    assert run("shop:app", "--env-file", "app.env").stderr.count("TAILRACE_TREADS is ignored") == 1


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
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.endswith("error: importing broken failed: ModuleNotFoundError: No module named 'absent_library'\n")


def test_config_prints_what_is_in_effect_and_its_source(directory):
    (directory / "tailrace.toml").write_text("backlog = 64\n")
    shown = run("config", "shop:app", "--threads", "4", TAILRACE_MAX_BODY="10MiB").output
    for line in (
        r'app = "shop:app" +# command line: MODULE:CALLABLE',
        r"threads = 4 +# command line: --threads",
        r'max_body = "10MiB" +# TAILRACE_MAX_BODY',
        r"backlog = 64 +# tailrace.toml",
        r"# access_log is unset +# default",
    ):
        assert re.search(rf"^{line}$", shown, re.MULTILINE), line


def test_config_refuses_what_serve_refuses_of_the_logs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tailrace", "config", "--log", "a.log", "--log-config", "b.json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--log (command line: --log) cannot be combined with --log-config; remove it" in capsys.readouterr().err


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
    parse_toml(first)
    (directory / "tailrace.toml").write_text(first)
    as_json = json.loads(run("config", "--format", "json", *given).output)
    again = json.loads(run("config", "--format", "json").output)
    assert {name: entry["value"] for name, entry in again.items()} == {
        name: entry["value"] for name, entry in as_json.items()
    }
    assert again["umask"] == {"value": "0o027", "source": "tailrace.toml"}
    assert set(again) == {option.name for option in OPTIONS}


def test_python_m_tailrace_is_the_command():
    shown = subprocess.run([sys.executable, "-m", "tailrace", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"tailrace {tailrace.__version__}\n"
