"""`tailrace migrate`: what is read, what is named, and that hostile input is one line."""

import json
import os
import re
import resource
import sys

import pytest
from click.testing import CliRunner
from harness.programs import tailrace
from harness.toml import parse_toml
from tailrace_tools.migrate import main

from tailrace.cli.settings import resolve
from tailrace.command import cli
from tailrace.errors import ConfigError


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def migrated(source):
    """The settings, the text, and the warnings; the text is a settings file that Tailrace takes."""
    text, warnings = main.run(source)
    with open("migrated.toml", "w") as file:
        file.write(text)
    resolve({}, {}, "migrated.toml")
    return parse_toml(text), text, warnings


def gunicorn(code):
    with open("conf.py", "w") as file:
        file.write(code)
    return migrated("conf.py")


def uwsgi(options, name="site.ini"):
    with open(name, "w") as file:
        file.write(f"[uwsgi]\n{options}")
    return migrated(name)


def without_defaults(found):
    """The settings without those that stand for a default of another server."""
    return {name: value for name, value in found.items() if name not in ("threads", "trusted_proxies")}


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("workers = 3", {"workers": 3}),
        ("workers: int = 3", {"workers": 3}),
        ("n = 2\nworkers = n * 2 + 1", {"workers": 5}),
        ("workers = 1\nworkers = 2", {"workers": 2}),
        ("bind = ['a:1']\nbind += ['b:2']", {"bind": ["a:1", "b:2"]}),
        ("host = 'h'\nbind = host + ':' + str(80)", {"bind": ["h:80"]}),
        ("bind = f'{1}.1.1.1:80'", {"bind": ["1.1.1.1:80"]}),
        ("bind = '%s:%d' % ('%h', 80)", {"bind": ["%h:80"]}),
        # Variables that are no settings.
        ("pid = '/run/a'\nname = 'b'", {}),
        ("import os\nworkers = int(os.getenv('W', 4))", {"workers": 4}),
        ("import os\nworkers = int(os.environ.get('W') or 4)", {"workers": 4}),
        ("import os\nworkers = 2 if os.getenv('E', 'live') == 'live' else 1", {"workers": 2}),
        ("import os\nworkers = (os.cpu_count() or 1) * 2", {"workers": "auto"}),
        ("import os\nworkers = len(os.sched_getaffinity(0))", {"workers": "auto"}),
        ("workers = max(2, min(8, 16))", {"workers": 8}),
        ("timeout = 10\nworker_class = 'gevent'", {"gevent": True, "hang_timeout": 10}),
        ("chdir = ''\npidfile = ''\numask = None", {}),
        ("accesslog = None\ndaemon = False\ncertfile = ''", {}),
        ("worker_class = 'gevent'\npreload_app = True\nthreads = 2", {"gevent": True}),
    ],
)
def test_assignments_of_gunicorn_are_taken(code, settings):
    found, text, _ = gunicorn(code)
    assert without_defaults(found) == settings, text


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os\nbind = os.environ['B']", "it depends on $B: set `bind` here, or TAILRACE_BIND"),
        (
            "import os\nbind = '0.0.0.0:' + os.environ['PORT']",
            "it depends on $PORT, and `bind` is 0.0.0.0:$PORT by default",
        ),
        (
            "import os\nworkers = os.environ.get('WEB_CONCURRENCY', 4)",
            "it depends on $WEB_CONCURRENCY this overrides the variable; remove the line, since `workers` is "
            "$WEB_CONCURRENCY by default",
        ),
        ("import os\nthreads = os.cpu_count()", "it depends on the number of CPUs: set `threads` here"),
        ("bind = address()", "its value is computed: set `bind` here"),
        ("from a import bind", "it is imported"),
        ("from a import *", "the settings of the other file are not read"),
        ("if x:\n    workers = 2", "it sets workers conditionally"),
        (
            "def post_fork(server, worker):\n    pass",
            "write it as `post_fork(worker)` in your `hooks` module",
        ),
        ("def pre_fork(server, worker):\n    pass", "there is no such hook"),
        (
            "preload_app = True\nworker_class = 'gevent'",
            "it is rejected with `gevent`: the process that forks the workers must stay unpatched",
        ),
        ("max_requests = 'many'", "`max_requests` does not accept the value: must be a whole number"),
        ("bind = 'a:b:c'", "`bind` does not accept the value"),
        ("certfile = 'a'\nraw_env = ['A=hidden']", "variables: A"),
        ("raw_env = variables()", "variables: raw_env"),
    ],
)
def test_what_is_not_taken_is_named_with_the_reason(code, said):
    _, text, warnings = gunicorn(code)
    assert said in " ".join(line.removeprefix("#").strip() for line in text.splitlines())
    assert any(re.split(":| this ", said)[0] in line for line in warnings), warnings
    assert "hidden" not in text


def test_nothing_of_the_configuration_is_executed():
    gunicorn("open('executed', 'w').close()\nimport no_such_module\nworkers = open('executed', 'w') and 2")
    uwsgi("print = $(touch executed)\nexec-asap = touch executed\nmodule = @(executed)")
    migrated("gunicorn -w $(touch executed) `touch executed` a:b")
    assert not os.path.exists("executed")


def test_a_comment_of_the_result_does_not_end_at_a_line_of_the_source():
    found, _, _ = gunicorn("worker_class = 'a\\nuser = \"root\"'\nproc_name = '\\x1b[31m\\u2028'\n")
    assert "user" not in found
    found, text, _ = migrated('gunicorn --name "a\nuser = 1" --keyfile "\x1b[2J" a:b')
    assert "user" not in found
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("a = b\nmodule = %(a).wsgi", {"app": "b.wsgi"}),
        ("set-placeholder = a=b\nmodule = %(a)", {"app": "b"}),
        ("module = %n", {"app": "site"}),
        ("module=a\ncallable=b", {"app": "a:b"}),
        ("http-socket = :1\nhttp-socket = :2\nsocket=@a", {"bind": [":1", ":2", "uwsgi+unix:@a"]}),
        ("processes = %k", {"workers": "auto"}),
        ("master\nprocesses = \\\n 3", {"workers": 3}),
        ("if-env = A\nprocesses = 3\nendif =\nharakiri = 9", {"request_timeout": 9}),
        ("harakiri = 20 ", {"request_timeout": 20}),
        ("log-format = %(addr) %(method)", {}),
        ("ini = :more\n[more]\nprocesses = 2", {"workers": 2}),
        ("include = other.ini", {"workers": 7}),
    ],
)
def test_options_of_uwsgi_are_taken(options, settings):
    with open("other.ini", "w") as file:
        file.write("[uwsgi]\nprocesses = 7\n")
    found, text, _ = uwsgi(options)
    assert without_defaults(found) == settings, text


def test_a_section_can_be_named():
    with open("two.ini", "w") as file:
        file.write("[uwsgi]\nprocesses = 1\n[live]\nprocesses = 2\n")
    assert migrated("two.ini:live")[0]["workers"] == 2


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (f"gunicorn -{'R' * 3000}w4 a:b", {"app": "a:b", "workers": 4}),
        ("gunicorn -w4 -b :80 a:b", {"app": "a:b", "workers": 4, "bind": [":80"]}),
        ("gunicorn --workers=4 --bind :80 --bind :81 a:b", {"app": "a:b", "workers": 4, "bind": [":80", ":81"]}),
        ("A=1 exec python3 -m gunicorn a:b --preload", {"app": "a:b", "preload": True}),
        ("WEB_CONCURRENCY=3 gunicorn a:b", {"app": "a:b", "workers": 3}),
        ("gunicorn -w ${N:-5} a:b", {"app": "a:b", "workers": 5}),
        ("N=6 gunicorn -w $N a:b", {"app": "a:b", "workers": 6}),
        ("gunicorn -w $(( 2 * `getconf _NPROCESSORS_ONLN` + 1 )) a:b", {"app": "a:b", "workers": "auto"}),
        ("cd /srv && gunicorn a:b > log 2>&1 &", {"app": "a:b"}),
        ("gunicorn 'a:create_app(\"live\")'", {"app": 'a:create_app("live")'}),
        ("gunicorn --proxy-protocol a:b", {"app": "a:b", "bind": ["http://127.0.0.1:8000?proxy=any"]}),
        ("gunicorn -c conf.py -w 2 a:b", {"app": "a:b", "workers": 2, "max_requests": 9}),
        ("uwsgi site.ini", {"request_timeout": 9}),
        ("uwsgi --http-socket :80 -w a:b -p 2 -M", {"app": "a:b", "bind": [":80"], "workers": 2}),
        (
            "waitress-serve --host=127.0.0.1 --port 80 --call a:make",
            {"app": "a:make", "bind": ["127.0.0.1:80"], "factory": True},
        ),
        ("waitress-serve --no-ipv6 a:b", {"app": "a:b", "bind": ["0.0.0.0:8080"]}),
        (
            "GRANIAN_WORKERS=2 granian --interface wsgi --host ::1 --no-ws a:b",
            {"app": "a:b", "workers": 2, "bind": ["[::1]:8000"]},
        ),
        (
            "granian a:b --static-path-route /a --static-path-mount x --static-path-route /b --static-path-mount y",
            {"app": "a:b", "static": ["/a=x", "/b=y"]},
        ),
        (
            "mod_wsgi-express start-server wsgi.py --callable-object app --url-alias /static ./s --setenv A B --port 1",
            {"app": "wsgi.py:app", "static": ["/static=./s"], "bind": ["0.0.0.0:1"]},
        ),
    ],
)
def test_a_command_line_is_read(command, settings):
    with open("conf.py", "w") as file:
        file.write("workers = 8\nmax_requests = 9\n")
    with open("site.ini", "w") as file:
        file.write("[uwsgi]\nharakiri = 9\n")
    found, text, _ = migrated(command)
    assert without_defaults(found) == settings, text


def test_a_procfile_is_read(directory):
    (directory / "Procfile").write_text("worker: celery -A a\nweb: gunicorn a:b\n")
    assert migrated("Procfile")[0]["app"] == "a:b"


def test_a_wrapper_of_the_command_is_named():
    assert "`ddtrace-run tailrace`" in migrated("ddtrace-run gunicorn a:b")[1]


def test_the_configuration_in_the_current_directory_counts_as_for_gunicorn(directory):
    (directory / "gunicorn.conf.py").write_text("workers = 5\n")
    assert migrated("gunicorn a:b")[0]["workers"] == 5


def test_workers_without_threads_stay_at_one_request_at_a_time():
    found, _, warnings = migrated("gunicorn a:b")
    assert found["threads"] == 1
    assert any("thread-safe" in line for line in warnings)
    assert "threads" not in migrated("gunicorn -k gevent a:b")[0]


def test_a_proxy_on_this_machine_stays_trusted():
    assert migrated("gunicorn a:b")[0]["trusted_proxies"] == ["unix", "127.0.0.1", "::1"]
    assert "trusted_proxies" not in migrated("gunicorn -b unix:/a a:b")[0]
    assert any("trusted_proxies" in line for line in migrated("gunicorn -b :80 a:b")[2])


NESTED = {
    "brackets.py": "workers = " + "[" * 50_000 + "]" * 50_000,
    "signs.py": "workers = " + "-" * 100_000 + "1",
    "sums.py": "workers = " + "1+" * 100_000 + "1",
    "attributes.py": "workers = a" + ".b" * 100_000,
    "calls.py": "workers = " + "int(" * 80 + "1" + ")" * 80,
    "ifs.py": "\n".join(" " * depth + "if x:" for depth in range(90)) + "\n" + " " * 95 + "workers = 1",
    "conditions.py": "workers = " + "1 if x else " * 20_000 + "1",
    "nested.json": '{"uwsgi": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "nested.xml": "<uwsgi>" + "<a>" * 50_000 + "</a>" * 50_000 + "</uwsgi>",
}
HOSTILE = {
    "binary.py": b"\x7fELF\0\0\1",
    "binary.ini": bytes(range(256)),
    "large.py": b"workers = 1\n" * 1_000_000,
    "large.ini": b"[uwsgi]\n" + b"a = b\n" * 2_000_000,
    "encoding.py": b"# coding: klingon\nworkers = 1\n",
    "latin.py": b"name = '\xe9'\n",
    "latin.ini": b"[uwsgi]\nmodule = \xe9\n",
    "utf16.ini": "[uwsgi]\nmodule = a\n".encode("utf-16"),
    "syntax.py": b"workers = = 1\n",
    "indent.py": b"  workers = 1\n x",
    "empty.ini": b"",
    "paste.ini": b"[server:main]\nuse = egg:gunicorn#main\n",
    "other.ini": b"[mysqld]\nport = 1\n",
    "loop.ini": b"[uwsgi]\ninclude = loop.ini\n",
    "laughs.ini": b"[uwsgi]\na = xxxxxxxxxx\n"
    + b"".join(b"%c = %%(%c)%%(%c)%%(%c)%%(%c)%%(%c)\n" % (98 + n, *[97 + n] * 5) for n in range(20)),
    "laughs.xml": b'<!DOCTYPE a [<!ENTITY a "b">]><uwsgi><module>&a;</module></uwsgi>',
    "wrong.xml": b"<uwsgi><module>",
    "other.xml": b"<html/>",
    "wrong.json": b"{",
    "list.json": b"[]",
    "deep.json": b'{"uwsgi": {"module": {"a": {}}}}',
    "hex.py": b"workers = 1\nbind = f'{0x" + b"f" * 4000 + b"}'\n",
    "percent.py": b"workers = 1\nbind = '%s' % 0x" + b"f" * 4000 + b"\n",
    "variables.py": b"workers = 1\nraw_env = 0x" + b"f" * 4000 + b"\n",
    "idna.py": b"# coding: idna\nworkers = 1\n",
    "wrong.yaml": b"uwsgi:\n  module\n",
    "empty.yaml": b"",
} | {name: text.encode() for name, text in NESTED.items()}
# Deep, but no deeper than what can be read: these have a result.
READ = {"calls.py", "ifs.py", "nested.xml"}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_one_line(name, directory):
    (directory / name).write_bytes(HOSTILE[name])
    result = CliRunner().invoke(cli, ["migrate", name], standalone_mode=False)
    if name in READ:
        assert result.exception is None
        return
    if isinstance(result.exception, ConfigError):
        assert result.exception.exit_status == 2
        said = str(result.exception)
        assert said.startswith(f"{name}: ")
        assert "\n" not in said
        assert len(said) < 300
    else:
        # What Python's parser takes is named in a comment.
        assert result.exception is None
        assert "workers" in result.output


COMMENTS = b"[uwsgi]\n" + b"#\n" * 500_000
LISTS = "a = ['x']\n" + "a = [a, a]\n" * 40
# Small files that would become large by what they repeat: by name, the content, and what is said of it.
REPEATED = {
    "text.py": (f"{LISTS}bind = f'{{a}}'\n", "its value is computed"),
    "str.py": (f"{LISTS}bind = str(a)\n", "its value is computed"),
    "lists.py": (f"{LISTS}bind = a\n", "its value is computed"),
    "nested.py": ("bind = ['x']\n" + "bind = [bind]\n" * 3000, "its value is computed"),
    "equal.py": (f"{LISTS}{LISTS.replace('a', 'b')}reload = a == b\n", "its value is computed"),
    # Beyond the limit of addresses; for more places, the parser of Python itself takes minutes.
    "joined.py": (f"a = '{'x' * 500_000}'\nbind = f'{'{a}' * 10_000}'\n", "its value is computed"),
    "short.py": (f"a = '{'x' * 80_000}'\nbind = f'{'{a}' * 30_000}'\n", "its value is computed"),
    "format.py": ("bind = '" + "%s" * 100_000 + "' % [" + "0," * 100_000 + "]\n", "its value is computed"),
    "depends.py": (
        "import os\na = ''\n" + "".join(f"a += os.environ['V{n}']\n" for n in range(9000)) + "bind = a\n",
        "$V7 and others",
    ),
    "statements.py": ("f();" * 250_000 + " \n", "more than 10000 statements"),
    "line.py": ("f();" * 9000 + "#" + "x" * 900_000 + " \n", "Tailrace does not execute configuration"),
    "condition.ini": (f"[uwsgi]\nif-env = {'x' * 900_000}\n" + "a=1\n" * 9998, "it depends on `if-env = xxx"),
    "include.ini": ("[uwsgi]\n" + "include = comments.ini\n" * 9000, "files together are larger than 4 MiB"),
    "key.json": (json.dumps({"uwsgi": {"k" * 900_000: [1] * 9000}}), "name is longer than 4096 characters"),
    "empty.conf": ("\n" * 1_000_000, "no application is named"),
    "empty.service": ("\n" * 1_000_000 + "#[Service]", "no application is named"),
    "Procfile": ("web: gunicorn " + "${a-" * 16_000, "`app` does not accept the value"),
}


@pytest.mark.parametrize("end", ["\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("site.ini", "[uwsgi]\nchdir = /a{}processes = 3\nthreads = 2\n"),
        ("site.yaml", "uwsgi:\n  chdir: /a{}  processes: 3\n  threads: 2\n"),
        (
            "site.service",
            "[Service]\nExecStart=gunicorn --threads 2 a:a\nEnvironment=A=a{}ExecStart=gunicorn -w 3 b:b\n",
        ),
        ("Dockerfile", "CMD gunicorn --threads 2 a:a\nRUN echo {}CMD gunicorn -w 3 b:b\n"),
        ("Procfile", "# a comment {}web: gunicorn -w 3 b:b\nweb: gunicorn --threads 2 a:a\n"),
    ],
)
def test_only_a_line_feed_begins_another_option(name, text, end, directory):
    (directory / name).write_text(text.format(end))
    found = migrated(name)[0]
    assert "workers" not in found
    assert found["threads"] == 2


def test_the_lines_of_gunicorns_file_are_those_of_python():
    _, text, warnings = gunicorn("a = '\v\f\x1c\x85\u2028'\n\fforbidden()\ndef on_exit(server):\n    stop()\n")
    assert "forbidden() (line 2)" in "".join(warnings)
    assert "#       stop()" in text


def limited():
    """Of the process: 2 GiB of addresses, and a minute of the processor."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


@pytest.mark.nightly(gate=1)
@pytest.mark.parametrize("name", REPEATED)
def test_a_small_file_needs_little_memory_and_time(name, directory):
    text, said = REPEATED[name]
    (directory / name).write_text(text)
    (directory / "comments.ini").write_bytes(COMMENTS)
    assert max(len(text), len(COMMENTS)) < 1 << 20, "a larger file is refused"
    done = tailrace("migrate", name, preexec_fn=limited, timeout=None)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if done.stderr.startswith("tailrace: warning: ") else 2)


def calls(options):
    """How many functions are called to convert a file of uWSGI with these options."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = uwsgi(options)[0]
    finally:
        sys.setprofile(None)
    return counted, found


@pytest.mark.parametrize(
    ("option", "ours"), [("http-socket = 127.0.0.1:{}", "bind"), ("static-map = /{}=/srv", "static")]
)
def test_an_option_of_many_lines_costs_the_same_for_each_line(option, ours):
    def lines(first, last):
        return "".join(f"{option.format(number)}\n" for number in range(first, last))

    none, few, many = calls(""), calls(lines(1, 201)), calls(lines(1, 401))
    assert [len(found[ours]) for _, found in (few, many)] == [200, 400]
    assert many[0] - few[0] < 1.1 * (few[0] - none[0])


@pytest.mark.parametrize(("value", "is_named"), [("true", False), ("false", True), ("0", True)])
def test_the_request_log_of_uwsgi_is_named_unless_it_is_switched_off(value, is_named):
    assert ("uWSGI logs each request by default" in uwsgi(f"disable-logging = {value}")[1]) is is_named


def test_a_file_for_the_logging_replaces_the_options_of_the_log(directory):
    (directory / "logging.json").write_text('{"version": 1}')
    settings, text, warnings = gunicorn("errorlog = 'e.log'\nloglevel = 'debug'\nlogconfig_json = 'logging.json'")
    assert settings["log_config"] == "logging.json"
    assert not {"log", "log_level"} & settings.keys()
    assert "log = ./e.log (errorlog, line 1)\n#       it is rejected with `log_config`" in text
    assert any(warning.startswith("log_level = debug") for warning in warnings)
    settings, text, _ = gunicorn("errorlog = 'e.log'\nlogconfig_dict = {'version': 1}")
    assert settings["log"] == "./e.log"
    assert "# remove it once the file for `log_config` exists\nlog = " in text


def test_an_entry_of_a_list_is_taken_once_and_its_name_has_one_value():
    assert uwsgi("http-socket = :1\nhttp-socket = :2\nhttp-socket = :1")[0]["bind"] == [":1", ":2"]
    settings, text, _ = uwsgi("static-map = /a=/x\nstatic-map = /b=/x\nstatic-map = /a=/x\nstatic-map = /a=/y")
    assert settings["static"] == ["/a=/x", "/b=/x"]
    assert "static-map = /a=/y (line 5)\n#       `static` does not accept the value: must name /a once." in text


def test_a_command_line_names_few_files(directory):
    (directory / "a.ini").write_text("[uwsgi]\nharakiri = 9\n")
    assert migrated("uwsgi" + " a.ini" * 10)[0]["request_timeout"] == 9
    with pytest.raises(ConfigError, match="names more than 10 files"):
        main.run("uwsgi" + " a.ini" * 11)


@pytest.mark.parametrize("section", ["@", "[", "*", "."])
def test_a_section_of_xml_is_the_name_of_an_element(section, directory):
    (directory / "b.xml").write_text("<all><uwsgi><processes>2</processes></uwsgi></all>")
    assert uwsgi("include = b.xml:uwsgi")[0]["workers"] == 2
    (directory / "site.ini").write_text(f"[uwsgi]\ninclude = b.xml:{section}\n")
    with pytest.raises(ConfigError) as error:
        main.run("site.ini")
    assert f"b.xml: no element <{section}>" in str(error.value)
    assert "the file is not read: no element <a:b>" in migrated("uwsgi --xml b.xml:a:b")[1]


def test_a_value_has_no_character_that_a_terminal_obeys(directory):
    name = f"{directory}/\x9b2J\u202e\u2028\U000e0001é"
    found, text, warnings = uwsgi(f"chdir = {name.replace(chr(0x2028), '')}")
    assert found["chdir"] == name.replace("\u2028", "")
    assert all(line.isprintable() for line in [*text.split("\n"), *warnings])
    assert "é" in text
    found, text, _ = gunicorn(f"chdir = {name!a}")
    assert found["chdir"] == name
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("count", [3, 20])
def test_files_that_include_each_other_end(count, directory):
    for number in range(count):
        (directory / f"{number}.ini").write_text(f"[uwsgi]\ninclude = {(number + 1) % count}.ini\n")
    with pytest.raises(ConfigError, match="includes itself"):
        main.run("0.ini")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("no.py", "no such file"),
        ("nothing", "neither a file nor a command line"),
        ("", "neither a file nor a command line"),
        ("gunicorn 'a:b", "cannot be split into words: no closing quotation"),
        ("gunicorn " + "a " * 50_000, "longer than 64 KiB"),
        ("gunicorn " + "$(a) " * 200, "more than 100 substitutions"),
        ("/dev/zero", "not a regular file"),
        (".", "not a regular file"),
        ("a\0b", "NUL"),
        ("gunicorn -b unix:/\udcff a:b", "UTF-8"),
    ],
)
def test_a_source_that_is_none_is_one_line(source, said):
    with pytest.raises(ConfigError, match=said) as error:
        main.run(source)
    assert "\n" not in str(error.value)


def test_a_file_that_may_not_be_read_is_named(directory):
    os.mkfifo(directory / "pipe.ini")
    with pytest.raises(ConfigError, match=r"pipe\.ini: not a regular file"):
        main.run("pipe.ini")


def test_a_file_whose_content_is_still_to_come_does_not_hold_the_command():
    # Regular by its mode, but reading waits for the kernel's next message. Only root may read it.
    try:
        os.close(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"/proc/kmsg: {error.strerror}")
    with open("site.ini", "w") as file:
        file.write("[uwsgi]\ninclude = /proc/kmsg\n")
    done = tailrace("migrate", "site.ini")
    assert re.search("the file is not read: (more content keeps arriving|larger than 1 MiB)", done.stderr)


def test_a_file_that_an_option_names_and_that_is_missing_is_a_warning():
    _, text, _ = migrated("gunicorn -c no.py a:b")
    assert "the file is not read: cannot be read: No such file" in text
    assert "the file is not read" in uwsgi("include = no.ini")[1]


def test_with_a_certificate_all_addresses_are_encrypted():
    command = "gunicorn --certfile a.pem --keyfile b.pem -b 0.0.0.0:443 -b unix:/run/a.sock a:b"
    made = parse_toml(CliRunner().invoke(cli, ["migrate", command]).stdout)
    assert (made["certfile"], made["keyfile"]) == (["a.pem"], ["b.pem"])
    assert made["bind"] == ["https://0.0.0.0:443", "https+unix:/run/a.sock?mode=777"]
    made = parse_toml(CliRunner().invoke(cli, ["migrate", "gunicorn --certfile a.pem a:b"]).stdout)
    assert made["bind"] == ["https://127.0.0.1:8000"]


def test_the_result_is_on_standard_output_and_warnings_on_standard_error():
    result = CliRunner().invoke(cli, ["migrate", "gunicorn --ciphers a b:c"])
    assert result.exit_code == 0
    assert parse_toml(result.stdout)["app"] == "b:c"
    assert "tailrace: warning: --ciphers a: Tailrace speaks TLS at addresses that begin with https://" in result.stderr


@pytest.mark.parametrize("words", [["gunicorn", "-w", "4", "a:b"], ["/usr/bin/uwsgi", "--http-socket", ":80"]])
def test_a_command_line_of_several_arguments_is_an_error_that_shows_it_in_quotes(words):
    result = CliRunner().invoke(cli, ["migrate", *words], standalone_mode=False)
    assert str(result.exception) == f"the command line must be one argument; put it in quotes: '{' '.join(words)}'"
    assert CliRunner().invoke(cli, ["migrate", "--", " ".join(words)]).exit_code == 0


def test_every_value_of_a_json_file_is_taken_as_text(directory):
    (directory / "a.json").write_text(json.dumps({"uwsgi": {"processes": 2, "master": True, "listen": None}}))
    assert migrated("a.json")[0]["workers"] == 2


def test_a_module_for_hooks_is_a_comment_with_the_code_of_gunicorn(directory):
    """Without the comment's signs, it is a module that the server takes."""
    code = "def post_fork(server, worker):\n    if worker.pid:\n        server.log.info('\x1b[2J')\n\n"
    code += (
        "def worker_exit(server, worker):\n    pass\n\nworker_int = print\n\ndef pre_fork(server, worker):\n    pass\n"
    )
    _, text, _ = gunicorn(code)
    lines = text.partition('# hooks = "hooks.py"\n')[2].splitlines()
    assert all(line == "#" or line.startswith("# ") for line in lines)
    module = "\n".join(line[2:] for line in lines)
    assert re.findall(r"^def (.*):$", module, re.MULTILINE) == ["post_fork(worker)", "worker_stop(worker)"]
    assert (
        "    #   def post_fork(server, worker):\n    #       if worker.pid:\n    #           server.log.info(" in module
    )
    assert "    # gunicorn's worker_int:\n    #   worker_int = print\n" in module
    (directory / "hooks.py").write_text(module)
    exec(compile(module, "hooks.py", "exec"), found := {})
    found["post_fork"](None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.service", "[Service]\nExecStart=/bin/true\n", "ExecStart= does not start a known server"),
        ("a.service", "[Service]\nExecStart=gunicorn 'a\n", "cannot be split into words"),
        ("a.service", "[Service]\nEnvironment='A=\nExecStart=gunicorn a\n", "cannot be split into words"),
        ("Dockerfile", "FROM a\nCMD gunicorn a:b\nFROM c\n", "CMD and ENTRYPOINT do not start a known server"),
    ],
)
def test_a_unit_or_dockerfile_without_a_server_is_one_line(name, text, said, directory):
    (directory / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        main.run(name)


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        (
            "a.service",
            "[Service]\nExecStart=gunicorn a:b \\\n  # no\n  -b unix:%t/a.sock\n",
            {"bind": ["unix:/run/a.sock?mode=777"]},
        ),
        ("a.service", "[Service]\nEnvironment=GUNICORN_CMD_ARGS='-w 3'\nExecStart=@gunicorn a:b\n", {"workers": 3}),
        ("a.service", "[Service]\nExecStart=gunicorn -b unix:/run/%i.sock a:b\n", {"bind": None}),
        ("a.service", "[Service]\nWorkingDirectory={}/site\nExecStart=gunicorn -c c.py a:b\n", {"workers": 7}),
        ("Dockerfile", 'FROM a\nENV WEB_CONCURRENCY=2\nCMD ["gunicorn", "-w", "$N", "a:b"]\n', {"workers": None}),
        ("Dockerfile", "from a\nentrypoint exec gunicorn a:b -c site/c.py\n", {"workers": 7, "app": "a:b"}),
    ],
)
def test_a_unit_or_dockerfile_is_read(name, text, settings, directory):
    (directory / "site").mkdir()
    (directory / "site" / "c.py").write_text("workers = 7\n")
    (directory / name).write_text(text.replace("{}", str(directory)))
    found, _, _ = migrated(name)
    assert {key: found.get(key) for key in settings} == settings


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("gunicorn -m rwx -b unix:/run/a a:b", "-m rwx: `bind` does not accept the value: must be octal permission"),
        ("gunicorn -m 1000 -b unix:/run/a a:b", "must be octal permission bits from 0 to 0o777, such as 0o007"),
        ("gunicorn --ssl-version TLSv1_1 a:b", "--ssl-version TLSv1_1: Tailrace speaks TLS 1.2 and 1.3 only"),
        (
            "gunicorn --certfile a --bind 0.0.0.0:$PORT a:b",
            'the default `bind` is not encrypted: start with `tailrace --bind "https://0.0.0.0:$PORT"`',
        ),
        (
            "gunicorn --certfile a --bind 0.0.0.0:${PORT:-443} a:b",
            '$PORT by default; if $PORT may be unset, start with `tailrace --bind "https://0.0.0.0:${PORT:-443}"`',
        ),
        ("gunicorn --bind 127.0.0.1:${PORT:-80} a:b", "bind: it depends on $PORT; the result contains a suggestion"),
        ('CMD ["gunicorn", "--ciphers", "a", "a:b"]', "--ciphers a: Tailrace speaks TLS"),
    ],
)
def test_what_a_command_line_leaves_is_said(command, said):
    found, _, warnings = migrated(command)
    assert any(said in line for line in warnings), warnings
    if "https" in said:
        assert "bind" not in found


@pytest.mark.parametrize(
    ("command", "bind"),
    [
        (
            "gunicorn --backlog 64 -m 007 -b unix:/a -b :1 -b unix:@b -b fd://3 a:b",
            ["unix:/a?backlog=64&mode=770", ":1?backlog=64", "unix:@b?backlog=64", "fd://3"],
        ),
        ("gunicorn --backlog 2048 -b :1 a:b", [":1"]),
        ("uwsgi --http-socket :1 --listen 64 --enable-proxy-protocol -w a:b", ["http://:1?proxy=any&backlog=64"]),
        ("waitress-serve --unix-socket /a --unix-socket-perms 660 a:b", ["unix:/a?mode=660"]),
        ("granian --uds /a --uds-permissions 660 --interface wsgi a:b", ["unix:/a?mode=660"]),
    ],
)
def test_what_is_set_for_all_sockets_is_an_option_of_each_that_may_have_it(command, bind):
    found, text, _ = migrated(command)
    assert found["bind"] == bind, text


@pytest.mark.parametrize("command", ["gunicorn --backlog 64 a:b", "uwsgi --socket @a --chmod-socket -w a:b"])
def test_an_option_of_sockets_without_such_an_address_is_a_warning(command):
    found, text, _ = migrated(command)
    assert "?" not in "".join(found.get("bind", ()))
    assert "set it as an option of an address in `bind`, as in " in text
