"""Where the server's own log and the access log go: each destination in each format, and in each mode of serving."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest
from harness.daemons import LogDaemon
from harness.programs import tailrace
from harness.server import APPS, Server
from server.probes import eventually

MODES = [("--workers", "1"), ("--workers", "2"), ("--debug",), ("--gevent",), ("--preload",), ("--reload",)]
TRACEBACK = r"Traceback \(most recent call last\):.*in broken.*ValueError: asked for "


def serving(arguments=(), **options):
    if "--gevent" in arguments:
        pytest.importorskip("gevent")
    if "--reload" in arguments:
        pytest.importorskip("watchfiles")
    return Server("srv_logs:app", *arguments, **options)


def fail(server, what):
    assert server.get(f"/fails?{what}").status == 500


def objects(text):
    """The entries of a log of JSON, all lines of which must be objects."""
    return [json.loads(line) for line in text.splitlines()]


@contextmanager
def streams(tmp_path, destination):
    """What a server writes to the destination `stdout`, `stderr` or a file, and what it writes elsewhere: functions.
    First the option."""
    error = open(tmp_path / "stderr", "wb")  # noqa: SIM115 - closed below
    path = tmp_path / "log"

    def texts(server):
        found = {
            "stdout": server.log,
            "stderr": (tmp_path / "stderr").read_text(),
            "file": path.read_text() if path.exists() else "",
        }
        wanted = found.pop(destination)
        return wanted, "".join(found.values())

    with error:
        yield str(path) if destination == "file" else destination, error.fileno(), texts


# Each destination in each format, and each mode with one of them: what writes an entry knows no mode.
@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize(
    ("arguments", "destination", "format"),
    [
        *(
            (MODES[0], destination, format)
            for destination in ("stderr", "stdout", "file")
            for format in ("text", "json")
        ),
        *((mode, "file", "json") for mode in MODES[1:]),
    ],
)
def test_the_servers_log_goes_to_a_stream_or_a_file(tmp_path, arguments, destination, format):
    with (
        streams(tmp_path, destination) as (option, stderr, texts),
        serving(arguments, log=option, log_format=format, stderr=stderr) as server,
    ):
        fail(server, "one")
        eventually(lambda: "asked for one" in texts(server)[0], "the exception")
        assert server.stop() == 0
        text, elsewhere = texts(server)
    assert "tailrace" not in elsewhere
    if format == "text":
        assert re.search(r"^\S+ tailrace\[\d+\] INFO: listening on http://", text, re.MULTILINE), text
        assert re.search(TRACEBACK + "one", text, re.DOTALL), text
        assert text.endswith(" INFO: stopped\n")
        return
    entries = objects(text)
    (error,) = [entry for entry in entries if "exception" in entry]
    assert re.search(TRACEBACK + "one", error["exception"], re.DOTALL)
    assert (error["level"], error["logger"]) == ("error", "tailrace.error")
    assert error["message"] == "GET /fails?one: exception in the application"
    assert error["worker"] in (1, 2)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", error["time"])
    listening = next(entry for entry in entries if entry["message"].startswith("listening"))
    assert listening["process"] == server.process.pid
    # A master is no worker.
    assert ("worker" in listening) is (arguments == ("--debug",))


@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize("logs", ["log in syslog", "access log in syslog"])
@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_one_log_goes_to_syslog_and_the_other_to_the_journal(tmp_path, arguments, logs):
    options = {"log": f"syslog:{tmp_path}/syslog?facility=local1&tag=shop", "access_log": f"journal:{tmp_path}/journal"}
    if logs == "access log in syslog":
        options = {"log": f"journal:{tmp_path}/journal?tag=shop"}
        options["access_log"] = f"syslog:{tmp_path}/syslog?facility=local7&tag=shop"
    with LogDaemon(tmp_path / "syslog") as syslog, LogDaemon(tmp_path / "journal") as journal:
        daemon = syslog if logs == "log in syslog" else journal
        with serving(arguments, access_log_format="{target} {status}", **options) as server:
            fail(server, "one")
            for number in range(20):
                server.get(f"/?{number}", "User-Agent: me\xff")
            eventually(lambda: daemon.has("asked for one"), "the exception")
            assert server.stop() == 0
            eventually(lambda: daemon.has(r"stopped(\n|$)"), "the last entry")
        assert server.log == ""
        if logs == "log in syslog":
            # local1 is 17; info is 6 and error 3.
            assert syslog.has(rf"^<{17 * 8 + 6}>shop\[{server.process.pid}\]: INFO: listening on http://")
            assert syslog.has(rf"^<{17 * 8 + 3}>shop\[\d+\]: ERROR: GET /fails\?one: exception in .*{TRACEBACK}one$")
            lines = [entry["MESSAGE"] for entry in journal.fields]
            entry = next(entry for entry in journal.fields if entry["MESSAGE"] == "/?7 200")
            wanted = {"PRIORITY": "6", "TAILRACE_STATUS": "200", "TAILRACE_BYTES": "6", "TAILRACE_QUERY": "7"}
            wanted |= {"TAILRACE_USER_AGENT": "me\\xff", "TAILRACE_ENDING": "complete"}
            assert wanted.items() <= entry.items()
            assert float(entry["TAILRACE_DURATION_MS"]) >= 0
            # What has no value has no field.
            assert "TAILRACE_REFERER" not in entry
        else:
            (error,) = [entry for entry in journal.fields if entry["PRIORITY"] == "3"]
            assert error["MESSAGE"].startswith("GET /fails?one: exception in the application\nTraceback")
            assert re.search(TRACEBACK + "one$", error["MESSAGE"], re.DOTALL)
            assert (error["SYSLOG_IDENTIFIER"], error["TAILRACE_LOGGER"]) == ("shop", "tailrace.error")
            assert error["TAILRACE_WORKER"] in ("1", "2")
            assert {entry["PRIORITY"] for entry in journal.fields} <= {"3", "4", "6"}
            lines = [re.sub(r"^<190>shop\[\d+\]: ", "", entry) for entry in syslog.entries]
    assert sorted(lines) == sorted(["/fails?one 500", *(f"/?{number} 200" for number in range(20))])


@pytest.mark.parametrize("format", ["text", "json"])
def test_both_logs_go_to_a_syslog_of_another_machine(format):
    with LogDaemon() as daemon, LogDaemon() as responses:
        options = {"access_log": f"syslog://127.0.0.1:{responses.port}", "access_log_format": "json"}
        with serving(log=f"syslog://127.0.0.1:{daemon.port}", log_format=format, **options) as server:
            fail(server, "one")
            eventually(lambda: daemon.has("asked for one") and responses.has("one"), "the exception and the response")
            # Of another process: it may arrive later.
            eventually(lambda: daemon.has("listening on http://"), "that it listens")
        (response,) = responses.entries
        assert re.match(r"<30>1 \S+Z \S+ tailrace \d+ - - \{", response)
        assert json.loads(response.partition(" - - ")[2])["target"] == "/fails?one"
        if format == "json":
            (entry,) = [entry for entry in daemon.entries if "asked for one" in entry]
            assert json.loads(entry.partition(" - - ")[2])["level"] == "error"
            return
        process, host = server.process.pid, re.escape(os.uname().nodename)
        time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
        assert daemon.has(rf"^<30>1 {time} {host} tailrace {process} - - INFO: listening on http://")
        assert daemon.has(rf"^<27>1 {time} {host} tailrace \d+ - - ERROR: GET /fails.*{TRACEBACK}one$")


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize("format", ["combined", "json"])
@pytest.mark.parametrize("destination", ["stderr", "stdout", "file"])
def test_the_access_log_goes_to_a_stream_or_a_file(tmp_path, destination, format):
    with (
        streams(tmp_path, destination) as (option, stderr, texts),
        serving(access_log=option, access_log_format=format, stderr=stderr) as server,
    ):
        server.get("/?a=b")
        eventually(lambda: "a=b" in texts(server)[0], "the line")
        text, elsewhere = texts(server)
        assert "a=b" not in elsewhere
        (line,) = [line for line in text.splitlines() if "a=b" in line]
        if format == "json":
            assert json.loads(line)["target"] == "/?a=b"
        else:
            assert re.fullmatch(r'127\.0\.0\.1 - - \[.*\] "GET /\?a=b HTTP/1\.1" 200 6 "-" "-"', line), line


@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_sigusr1_reopens_the_files_of_all_processes(tmp_path, arguments):
    path, old = tmp_path / "log", tmp_path / "log.1"
    with serving(arguments, log=path) as server:
        fail(server, "one")
        eventually(lambda: "asked for one" in path.read_text(), "the exception")
        path.rename(old)
        fail(server, "two")
        eventually(lambda: "asked for two" in old.read_text(), "the exception in the old file")
        server.send_signal(signal.SIGUSR1)
        said = 2 if arguments == ("--workers", "2") else 1
        eventually(lambda: path.exists() and path.read_text().count("access log reopened") == said, "the new file")
        fail(server, "three")
        eventually(lambda: "asked for three" in path.read_text(), "the exception in the new file")
        assert server.stop() == 0
        # The master, too.
        assert path.read_text().endswith(" INFO: stopped\n")
    assert "asked for three" not in old.read_text()
    # With --debug, the access log is on standard output.
    assert [line for line in server.log.splitlines() if not line.startswith("GET /")] == []


def test_a_file_that_cannot_be_reopened_is_kept_and_the_log_says_so(tmp_path):
    folder, moved = tmp_path / "logs", tmp_path / "moved"
    folder.mkdir()
    with serving(log=folder / "log", access_log=folder / "access") as server:
        eventually(lambda: "ready in" in (folder / "log").read_text(), "the worker")
        folder.rename(moved)
        server.send_signal(signal.SIGUSR1)
        said = f"which continues in the old file: {folder}/log: the directory {folder} does not exist; create it"
        # Master and worker.
        eventually(lambda: (moved / "log").read_text().count(said) == 2, "that it cannot be reopened")
        access = f"cannot reopen the access log, which continues in the old file: {folder}/access: the directory"
        eventually(lambda: access in (moved / "log").read_text(), "the same of the access log")
        assert "log reopened" not in (moved / "log").read_text()
        server.get("/?after")
        eventually(lambda: "/?after" in (moved / "access").read_text(), "a line in the old file")
        assert server.stop() == 0
        assert (moved / "log").read_text().endswith(" INFO: stopped\n")
        assert "SIGUSR1: log reopened" not in (moved / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
def test_a_file_has_the_log_of_successors_too(tmp_path, number):
    path = tmp_path / "log"
    with serving(log=path, pidfile=tmp_path / "pid") as server:
        first = server.pid
        server.send_signal(number)
        if number == signal.SIGHUP:
            eventually(lambda: "reload complete" in path.read_text(), "the reload")
            eventually(lambda: server.workers() != [first], "another worker")
            fail(server, "one")
            eventually(lambda: "asked for one" in path.read_text(), "the exception")
            return
        assert server.wait() == 0
        successor = int((tmp_path / "pid").read_text())
        fail(server, "one")
        eventually(lambda: "asked for one" in path.read_text(), "the exception")
        os.kill(successor, signal.SIGTERM)
        eventually(lambda: path.read_text().count("INFO: stopped\n") == 2, "the end of the successor")


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize(("arguments", "kind"), [*((mode, "syslog") for mode in MODES), (MODES[0], "journal")])
def test_a_daemon_that_stalls_holds_no_request_and_no_stop(tmp_path, arguments, kind):
    path = tmp_path / "socket"
    count = 1500
    with LogDaemon(path, reads=False), serving(arguments, log=f"{kind}:{path}", access_log=f"{kind}:{path}") as server:
        for _ in range(count // 100):
            with server.client(30) as client:
                for _ in range(100):
                    assert client.ask(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").status == 200
        for number in range(50):
            fail(server, number)
        if arguments != ("--debug",):
            # The master has something to say, too.
            for number in (signal.SIGTTIN, signal.SIGTTOU) * 20:
                server.send_signal(number)
        assert server.get("/").body == b"logged"
        assert server.stop() == 0


def test_what_a_daemon_takes_late_is_complete_and_in_order(tmp_path):
    path = tmp_path / "socket"
    with LogDaemon(path, reads=False) as daemon:
        with serving(log=f"journal:{path}", access_log=f"journal:{path}", access_log_format="{target}") as server:
            for number in range(700):
                server.get(f"/?{number}")
            for number in range(50):
                fail(server, number)
            daemon.begin()
            eventually(lambda: daemon.has("asked for 49"), "the last exception")
            assert server.stop() == 0
            eventually(lambda: daemon.has("MESSAGE=stopped"), "the last entry")
        said = [entry["MESSAGE"] for entry in daemon.fields]
    assert [each for each in said if each.startswith("/?")] == [f"/?{number}" for number in range(700)]
    failed = [int(found[1]) for each in said if (found := re.search(r"asked for (\d+)$", each))]
    # Each client has its response before the exception is logged, so the lines of two threads may change places.
    assert sorted(failed) == list(range(50))


def test_a_daemon_that_is_started_again_gets_what_follows_and_the_count_of_what_it_missed(tmp_path):
    paths = [tmp_path / "log", tmp_path / "access"]
    options = {"log": f"syslog:{paths[0]}", "access_log": f"syslog:{paths[1]}", "access_log_format": "line {target}"}
    with LogDaemon(paths[0]) as log:
        with LogDaemon(paths[1]) as access:
            # One thread: it has logged an exception before it takes the next request.
            server = serving(threads=1, **options)
            server.get("/?one")
            eventually(lambda: log.has("ready in") and access.has(r"line /\?one$"), "the worker, and the first line")
        server.get("/?two")
        eventually(lambda: log.has("cannot write the access log: "), "that it cannot be written")
    with server:
        for number in range(3):
            fail(server, number)
        server.get("/")
        with LogDaemon(paths[0]) as log, LogDaemon(paths[1]) as access:
            fail(server, "after")
            eventually(lambda: log.has("asked for after") and access.has(r"line /fails\?after$"), "what follows")
            assert re.search(r"<28>tailrace\[\d+\]: 3 entries of this log were dropped", log.entries[0])
            # The line of the last request may have been written only when the daemon was there again.
            dropped = re.search(r"<28>tailrace\[\d+\]: # (\d) lines dropped", access.entries[0])
            assert int(dropped[1]) + access.has(r"line /$") == 5, access.entries
            assert server.stop() == 0


@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("log", "nowhere/log", "the directory {here}/nowhere does not exist; create it"),
        ("log", ".", "Is a directory"),
        ("log", "journal:{here}/journal", "no journal daemon is listening there"),
        ("log", "syslog:{here}/log", "no syslog daemon is listening there"),
        ("log", "tcp://localhost:514", "syslog://HOST:514 (UDP)"),
        ("log", "logging", "only --access-log accepts `logging`"),
        ("log_format", "xml", "must be one of text, json"),
        ("access_log", "nowhere/log", "the directory {here}/nowhere does not exist; create it"),
        ("access_log", "journal:{here}/journal", "no journal daemon is listening there"),
        ("access_log", "syslog?facility=local9", "unknown facility"),
    ],
)
def test_a_log_that_cannot_be_opened_is_one_error_before_anything_is_served(tmp_path, option, value, said):
    arguments = ["srv_logs:app", "--bind", "127.0.0.1:0", "--chdir", str(tmp_path)]
    arguments += [f"--{option.replace('_', '-')}", value.replace("{here}", str(tmp_path))]
    environment = {**os.environ, "PYTHONPATH": f"{APPS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    ended = tailrace(*arguments, env=environment)
    assert ended.returncode == 2, ended
    errors = [line for line in ended.stderr.splitlines() if line.startswith("tailrace: error: ")]
    assert len(errors) == 1, ended.stderr
    assert said.replace("{here}", str(tmp_path)) in errors[0]
    assert "listening on http" not in ended.stderr


def test_an_error_that_ends_the_server_is_in_its_log_and_on_standard_error(tmp_path):
    path = tmp_path / "log"
    ended = tailrace("srv_logs:absent", "--bind", "127.0.0.1:0", "--log", str(path), cwd=APPS)
    assert ended.returncode != 0
    assert "absent" in ended.stderr
    assert "absent" in path.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_run_sends_its_log_where_the_program_says(tmp_path, workers):
    path = tmp_path / "log"
    program = f"""
        import logging, os, signal, sys, threading
        import tailrace
        from tailrace.logs.log import logger
        logging.basicConfig(stream=sys.stdout)
        def app(environ, start_response):
            start_response("200 OK", [])
            return []
        class Stop(logging.Handler):
            def emit(self, record):
                if "ready" in record.getMessage() or "listening" in record.getMessage() and {workers} == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
        logger.addHandler(Stop())
        tailrace.run(app, bind="127.0.0.1:0", workers={workers}, log={str(path)!r}, log_format="json")
        logger.warning("afterwards")
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended
    messages = [entry["message"] for entry in objects(path.read_text())]
    assert any(message.startswith("listening on http://") for message in messages)
    assert messages[-1] == "stopped"
    # From then on the logger is the program's again.
    assert ended.stdout == "WARNING:tailrace:afterwards\n"


@pytest.mark.parametrize("arguments", [("--workers", "1"), ("--debug",)], ids=" ".join)
def test_a_log_relative_to_chdir_is_found_again_by_a_rotation(tmp_path, arguments):
    (tmp_path / "moves.py").write_text(
        "import os\ndef app(environ, start_response):\n    start_response('200 OK', [])\n    return []\nos.chdir('/')\n"
    )
    path, access = tmp_path / "relative.log", tmp_path / "access.log"
    with Server("moves:app", *arguments, chdir=tmp_path, log="relative.log", access_log="access.log") as server:
        # It serves, so it heeds signals.
        server.get("/?before")
        eventually(access.exists, "the access log")
        path.rename(tmp_path / "old")
        access.rename(tmp_path / "old.access")
        server.send_signal(signal.SIGUSR1)
        eventually(lambda: path.exists() and "access log reopened" in path.read_text(), "the worker's line")
        server.get("/?after")
        eventually(lambda: access.exists() and "/?after" in access.read_text(), "the line in the new file")


def prlimit(process, size):
    """As a disk that is full at this size of a file; None: it has room again."""
    resource.prlimit(process, resource.RLIMIT_FSIZE, (size or resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_line_that_a_full_disk_has_cut_does_not_run_into_the_next_one(tmp_path):
    log, access_log = tmp_path / "log", tmp_path / "access"
    formats = {"log_format": "json", "access_log_format": "json {target} {user_agent}"}
    with serving(log=log, access_log=access_log, **formats) as server:
        server.get("/?first")
        eventually(lambda: access_log.read_text().count("\n") == 1, "the first response")
        # The master writes it, which has no limit, possibly after the first response.
        eventually(lambda: ", serves " in log.read_text(), "the last entry of the start")
        for name, path in (("a", access_log), ("b", log)):
            prlimit(server.pid, path.stat().st_size + 20)
            fail(server, f"{name}lost")
            eventually(lambda path=path: path.read_bytes()[-1:] != b"\n", "a part of an entry")
            prlimit(server.pid, None)
            fail(server, f"{name}next")
            eventually(lambda path=path, name=name: f"{name}next" in path.read_text(), "the next one")
        assert server.stop() == 0
        texts = {path: path.read_text() for path in (log, access_log)}
    for path, text in texts.items():
        parts = [line for line in text.splitlines() if not line.endswith("}")]
        assert len(parts) == 1, f"{path}: {parts}"
        assert any('"dropped": ' in line or "were dropped" in line for line in text.splitlines())
        objects("".join(f"{line}\n" for line in text.splitlines() if line not in parts))


def test_the_lines_of_several_workers_in_one_pipe_are_whole(tmp_path):
    count, pad = 1500, "p" * 1000
    reader, writer = os.pipe()
    with open(tmp_path / "log", "wb") as error:
        stdout = subprocess.Popen(["cat"], stdin=reader, stdout=error)
        os.kill(stdout.pid, signal.SIGSTOP)
        os.close(reader)
        with serving(
            ("--workers", "3"), access_log="stderr", access_log_format="{target} {user_agent} END", log=os.devnull,
            stderr=writer,
        ) as server:  # fmt: skip
            os.close(writer)
            for number in range(count):
                assert server.get(f"/?{number}", f"User-Agent: {pad}").status == 200
            os.kill(stdout.pid, signal.SIGCONT)
            assert server.stop() == 0
        assert stdout.wait() == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"/?{number} {pad} END" for number in range(count))


@pytest.mark.parametrize("kind", ["udp", "syslog", "journal"])
def test_a_client_with_long_fields_cannot_keep_its_request_out_of_the_log(tmp_path, kind):
    path = tmp_path / "socket"
    with LogDaemon(None if kind == "udp" else path) as daemon:
        destination = f"syslog://127.0.0.1:{daemon.port}" if kind == "udp" else f"{kind}:{path}"
        with serving(access_log=destination, access_log_format="{status} {user_agent}") as server:
            assert server.get("/", "User-Agent: " + "\xff" * 60_000).status == 200
            eventually(lambda: daemon.has(r"200 (\\xff){1000}"), "the entry")
            assert server.stop() == 0
        assert not daemon.has("dropped")


MADE_LATER = """
import logging, tailrace

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    logger = logging.getLogger("shop")
    logger.propagate = False
    logger.addHandler(tailrace.LogHandler(environ["QUERY_STRING"]))
    for number in range(1000):
        logger.warning("entry %d", number)
    return [b"x"]
"""


@pytest.mark.parametrize("arguments", [(), ("--debug",)], ids=" ".join)
def test_what_waits_for_a_handler_that_the_application_has_made_is_written_without_a_further_entry(tmp_path, arguments):
    (tmp_path / "later.py").write_text(MADE_LATER)
    path = tmp_path / "socket"
    with (
        LogDaemon(path, reads=False) as daemon,
        Server("later:app", *arguments, directory=tmp_path) as server,
    ):
        assert server.get(f"/?syslog:{path}").status == 200
        daemon.begin()
        eventually(lambda: len(daemon.entries) == 1000, "all entries")


@pytest.mark.parametrize("option", ["log", "log_config"])
@pytest.mark.parametrize("arguments", [(), ("--debug",)], ids=" ".join)
def test_log_files_have_the_permissions_that_the_umask_leaves(tmp_path, arguments, option):
    paths = [tmp_path / "log", tmp_path / "access"]
    (tmp_path / "logging.json").write_text(
        json.dumps(
            {
                "handlers": {"a": {"class": "tailrace.LogHandler", "destination": str(paths[0])}},
                "loggers": {"tailrace": {"handlers": ["a"]}},
            }
        )
    )
    chosen = {option: paths[0] if option == "log" else tmp_path / "logging.json"}
    with serving(arguments, access_log=paths[1], umask="077", **chosen) as server:
        server.get("/")
        assert [path.stat().st_mode & 0o777 for path in paths] == [0o600] * 2
        for path in paths:
            path.rename(f"{path}.1")
        os.kill(server.process.pid, signal.SIGUSR1)
        eventually(lambda: all(path.exists() for path in paths), "the new files")
        assert [path.stat().st_mode & 0o777 for path in paths] == [0o600] * 2
