"""`--log-config`: logging is configured by a file, in the master and in each worker."""

import json
import logging
import re
import signal
import textwrap

import pytest
from harness.programs import python, tailrace
from package.test_worker import get
from server.probes import eventually

from tailrace.errors import ConfigError
from tailrace.logs import log, log_config

PONG = "def app(environ, start_response):\n    start_response('200 OK', [])\n    return [b'pong']\n"


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch):
    root = logging.getLogger()
    kept = [(each, each.level, each.propagate, list(each.handlers)) for each in (root, log.logger, log.access_logger)]
    monkeypatch.setattr(log_config, "_applied", None)
    monkeypatch.setattr(log_config, "_changes", [])
    yield
    for each, level, propagate, handlers in kept:
        each.setLevel(level)
        each.propagate = propagate
        for made in set(each.handlers) - set(handlers):
            made.close()
        each.handlers[:] = handlers


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return str(path)


HANDLER = "[handlers.a]\nclass = 'tailrace.LogHandler'\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent/a.toml", None, "absent/a.toml: no such file"),
        ("a.json", "{", "not valid JSON: "),
        ("a.json", "[]", "must be an object with keys such as handlers"),
        (
            "logging.ini",
            "[loggers]",
            "is neither .toml nor .json; write the dictionary of logging.config.dictConf",
        ),
        ("a.toml", "handlers = [", "not valid TOML: "),
        ("a.toml", "handler = 1", "unknown key handler; did you mean handlers?"),
        ("a.toml", "handlers = 1", "handlers must be a table"),
        ("a.toml", "[handlers]\nconsole = 1", "handlers.console must be a table"),
        ("a.toml", "root = 1", "root must be a table"),
        ("a.toml", "[root]\nhandler = []", "unknown key root.handler; did you mean handlers?"),
        ("a.toml", "[root]\nhandlers = ['b']", "root: Unable to add handler 'b'"),
        ("a.toml", "version = 2", "version must be the number 1; it may be left out"),
        ("a.toml", "disable_existing_loggers = 'no'", "disable_existing_loggers must be true or false, not 'no'"),
        ("a.toml", "[loggers.a]\npropagate = 'no'", "loggers.a.propagate must be true or false, not 'no'"),
        ("a.toml", "[loggers.a]\nhandlers = 'b'", "loggers.a.handlers must be a list, such as ['server'], not 'b'"),
        ("a.toml", "[loggers.tailrace]\nhandlers = ['b']", "loggers.tailrace: Unable to add handler 'b': there is no"),
        ("a.toml", "[loggers.tailrace]\nlevel = 'LOUD'", "loggers.tailrace: Unknown level: 'LOUD'"),
        ("a.toml", "[loggers.tailrace]\nlevl = 'INFO'", "unknown key loggers.tailrace.levl; did you mean level?"),
        ("a.toml", "[loggers.tailrace.access]\nlevel = 'INFO'", '[loggers."tailrace.access"]'),
        ("a.toml", "[handlers.a]\nlevel = 'INFO'", "handlers.a must name its class, such as class = 'tailrace"),
        ("a.toml", "[handlers.a]\nclass = 3", "handlers.a must name its class"),
        ("a.toml", "[handlers.a]\n'()' = 'sys.exit'", "SystemExit"),
        ("a.toml", "[handlers.a]\nclass = 'nowhere.Handler'", "handlers.a: Cannot resolve 'nowhere.Handler'"),
        ("a.toml", f"{HANDLER}stream = 'stdout'", "handlers.a.stream is the text 'stdout', to which nothing can be"),
        ("a.toml", f"{HANDLER}destination = 5", "destination 5: must be a text"),
        ("a.toml", f"{HANDLER}destination = 'logging'", "is only for --access-log"),
        ("a.toml", f"{HANDLER}destination = 'syslog?x=y'", "handlers.a: syslog has no option"),
        (
            "a.toml",
            "[handlers.a]\nclass = 'logging.FileHandler'\nfilename = 'no/x'",
            "handlers.a: [Errno 2] No such file",
        ),
        ("a.toml", f"{HANDLER}encoding = 'x'", "handlers.a: unknown encoding: x"),
        ("a.toml", f"{HANDLER}format = 'xml'", "handlers.a: format 'xml': must be"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_key(tmp_path, name, text, said):
    path = str(tmp_path / name) if text is None else written(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        log_config.apply(path, "info", str(tmp_path))
    message = str(caught.value)
    assert message.startswith(f"--log-config {path}: ")
    assert said in message
    assert "\n" not in message or "not valid" in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.json: cannot be read: Is a directory"):
        log_config.apply(str(tmp_path / "folder.json"), "info", str(tmp_path))


def test_loggers_that_exist_stay_enabled_and_files_are_relative_to_the_directory(tmp_path):
    existing = logging.getLogger("of.a.library")
    path = written(
        tmp_path,
        "a.toml",
        """
        [handlers.file]
        class = "logging.FileHandler"
        filename = "x.log"
        [handlers.ours]
        class = "tailrace.LogHandler"
        destination = "y.log"
        [loggers.tailrace]
        handlers = ["file", "ours"]
        """,
    )
    (tmp_path / "logs").mkdir()
    log_config.apply(path, "info", str(tmp_path / "logs"))
    assert not existing.disabled
    assert not log.error_logger.disabled
    log.logger.info("said")
    assert (tmp_path / "logs" / "x.log").read_text() == "said\n"
    assert (tmp_path / "logs" / "y.log").read_text().endswith("INFO: said\n")
    # For a change of user.
    assert {str(tmp_path / "logs" / name) for name in ("x.log", "y.log")} <= set(log.made())


def test_the_level_is_that_of_the_file_and_else_of_the_option(tmp_path):
    path = written(tmp_path, "a.json", json.dumps({"loggers": {"tailrace": {"level": "ERROR"}}}))
    log_config.apply(path, "info", str(tmp_path))
    assert log.logger.level == logging.ERROR
    log.logger.setLevel(logging.NOTSET)
    path = written(tmp_path, "b.json", "{}")
    log_config.apply(path, "debug", str(tmp_path))
    assert log.logger.level == logging.DEBUG


def test_what_the_file_no_longer_configures_is_as_before(tmp_path, monkeypatch):
    # Without those of pytest.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    shop = logging.getLogger("shop.of.the.first.file")
    path = written(
        tmp_path,
        "a.toml",
        f"""
        [handlers.null]
        class = "logging.NullHandler"
        [filters.shop]
        name = "shop"
        [loggers."{shop.name}"]
        level = "DEBUG"
        handlers = ["null"]
        filters = ["shop"]
        propagate = false
        """,
    )
    log_config.apply(path, "info", str(tmp_path))
    own = logging.NullHandler()
    shop.addHandler(own)
    assert len(shop.handlers) == 2
    assert len(log.logger.handlers) == 1, "nothing else handles the server's log"
    written(tmp_path, "a.toml", "[handlers.null]\nclass = 'logging.NullHandler'\n[root]\nhandlers = ['null']")
    log_config.apply_again()
    assert (shop.level, shop.propagate, shop.handlers, shop.filters) == (logging.NOTSET, True, [own], [])
    # It goes to the handler of the root logger now.
    assert (log.logger.handlers, log.logger.propagate) == ([], True)
    shop.removeHandler(own)


def test_a_file_cannot_disable_the_loggers_of_the_server(tmp_path):
    path = written(tmp_path, "a.json", json.dumps({"disable_existing_loggers": True}))
    log_config.apply(path, "info", str(tmp_path))
    assert not any(each.disabled for each in (log.logger, log.error_logger, log.access_logger))


@pytest.mark.parametrize("option", ["--log=stdout", "--log-format=json", "--log-level=debug"])
def test_what_the_file_replaces_is_an_error_that_names_the_remedy(tmp_path, option):
    path = written(tmp_path, "logging.toml", "")
    (tmp_path / "pong.py").write_text(PONG)
    ended = tailrace("pong:app", "--log-config", path, option, cwd=tmp_path)
    assert ended.returncode == 2
    flag = option.partition("=")[0]
    assert f"{flag} (command line: {flag}) cannot be combined with --log-config; remove it" in ended.stderr
    assert "of the logger 'tailrace' in " in ended.stderr


CONFIG = """
[formatters.short]
format = "%(process)d %(name)s %(levelname)s %(message)s"

[handlers.file]
class = "logging.FileHandler"
filename = "server.log"
formatter = "short"

[handlers.access]
class = "logging.FileHandler"
filename = "access.log"
formatter = "short"

[loggers.tailrace]
level = "INFO"
handlers = ["file"]
propagate = false

[loggers."tailrace.access"]
handlers = ["access"]
propagate = false
"""


@pytest.mark.parametrize(
    "arguments", [(), ("--workers", "2"), ("--debug",), ("--gevent",), ("--preload",), ("--reload",)], ids=" ".join
)
def test_master_and_workers_log_as_the_file_says(tmp_path, command, arguments):
    if arguments == ("--gevent",):
        pytest.importorskip("gevent")
    if arguments == ("--reload",):
        pytest.importorskip("watchfiles")
    (tmp_path / "pong.py").write_text(PONG)
    (tmp_path / "logging.toml").write_text(CONFIG)
    server = command(
        *("pong:app", "--bind", "127.0.0.1:0", "--log-config", "logging.toml", "--access-log", "logging"),
        *("--access-log-format", "{target} {status}", *arguments),
    )
    path = tmp_path / "server.log"
    address = eventually(lambda: found(path, r"listening on http://([\d.]+:\d+)"), "the address")
    get(f"http://{address}/one")
    eventually(lambda: "/one 200" in text_of(tmp_path / "access.log"), "the line")
    path.rename(tmp_path / "server.log.1")
    (tmp_path / "access.log").rename(tmp_path / "access.log.1")
    server.process.send_signal(signal.SIGUSR1)
    said = 2 if arguments == ("--workers", "2") else 1
    eventually(lambda: text_of(path).count("access log reopened") == said, "the new files")
    get(f"http://{address}/two")
    eventually(lambda: "/two 200" in text_of(tmp_path / "access.log"), "the line in the new file")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert text_of(path).endswith(f"{server.process.pid} tailrace INFO stopped\n")
    assert "/two" not in text_of(tmp_path / "access.log.1")
    # Nothing of it is on standard error.
    assert "tailrace" not in "".join(server.seen)


STOPS = """
import logging, os, signal

class Stop(logging.Handler):
    def emit(self, record):
        if "listening" in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)
"""


def test_run_takes_a_file_and_leaves_the_logger_to_the_program_afterwards(tmp_path):
    (tmp_path / "stops.py").write_text(STOPS)
    (tmp_path / "logging.toml").write_text(
        CONFIG.replace('["file"]', '["file", "stop"]') + "[handlers.stop]\nclass = 'stops.Stop'\n"
    )
    program = """
        import logging, sys, tailrace
        logging.basicConfig(stream=sys.stdout)
        try:
            tailrace.run(print, bind="127.0.0.1:0", log_config="logging.toml", log_level="info")
        except tailrace.ConfigError as error:
            print(error)
        tailrace.run(print, bind="127.0.0.1:0", log_config="logging.toml")
        logging.getLogger("tailrace").warning("afterwards")
    """
    ended = python(program, directory=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    refused, afterwards = ended.stdout.splitlines()
    assert "cannot be combined with --log-config; remove it" in refused
    assert afterwards == "WARNING:tailrace:afterwards"
    assert text_of(tmp_path / "server.log").endswith(" tailrace INFO stopped\n")


def test_a_reload_reads_the_file_again_and_a_mistake_in_it_leaves_the_old_workers(tmp_path, command):
    (tmp_path / "pong.py").write_text(
        "import logging\nlogging.getLogger('tailrace').warning('configured %s', logging.getLogger('other').level)\n"
        + PONG
    )
    config = {"loggers": {"other": {"level": 11}}}
    path = tmp_path / "logging.json"
    path.write_text(json.dumps(config))
    server = command("pong:app", "--bind", "127.0.0.1:0", "--log-config", "logging.json")
    server.until("configured 11")
    host, port = server.address()
    server.until("ready in")
    path.write_text(json.dumps({"loggers": {"other": {"level": 12}}}))
    server.process.send_signal(signal.SIGHUP)
    server.until("configured 12")
    server.until("reload complete")
    path.write_text("{")
    server.process.send_signal(signal.SIGHUP)
    server.until("reload failed, the old workers keep serving: .*logging.json: not valid JSON")
    assert get(f"http://{host}:{port}/") == b"pong"


def test_a_file_without_a_handler_for_the_server_leaves_its_log_on_standard_error(tmp_path, command):
    (tmp_path / "pong.py").write_text(PONG)
    (tmp_path / "logging.toml").write_text('[loggers."of.the.application"]\nlevel = "DEBUG"\n')
    server = command("pong:app", "--bind", "127.0.0.1:0", "--log-config", "logging.toml")
    server.address()
    server.until("ready in")


def test_a_handler_with_a_thread_in_the_master_is_a_warning(tmp_path, command):
    (tmp_path / "pong.py").write_text(PONG)
    (tmp_path / "threaded.py").write_text(
        "import logging, sys, threading\n"
        "class Threaded(logging.StreamHandler):\n"
        "    def __init__(self):\n"
        "        super().__init__(sys.stderr)\n"
        "        threading.Thread(target=threading.Event().wait, name='sender', daemon=True).start()\n"
    )
    (tmp_path / "logging.toml").write_text(
        "[handlers.a]\nclass = 'threaded.Threaded'\n[loggers.tailrace]\nhandlers = ['a']\n"
    )
    server = command("pong:app", "--bind", "127.0.0.1:0", "--log-config", "logging.toml")
    server.until(r"handlers have started threads in the master \(sender\)")
    server.address()


def found(path, pattern):
    match = re.search(pattern, text_of(path))
    return match and match[1]


def text_of(path):
    return path.read_text() if path.exists() else ""


def test_a_dash_is_standard_error_for_a_handler_as_for_the_log():
    assert log.LogHandler("-").kind == "stderr"
