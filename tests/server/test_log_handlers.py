"""Handlers of the application on the loggers `tailrace`, `tailrace.error` and `tailrace.access`: those of Sentry and
OpenTelemetry, unmodified, and any other."""

import json
import re

import pytest
from harness.server import Server
from server.probes import eventually

MODES = [("--workers", "2"), ("--debug",), ("--gevent",), ("--preload",), ("--reload",)]


APP = """

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"x"]
"""


def serving(application, arguments=(), **options):
    if "--gevent" in arguments:
        pytest.importorskip("gevent")
    if "--reload" in arguments:
        pytest.importorskip("watchfiles")
    return Server(application, *arguments, **options)


def handled(directory, source, arguments=(), **options):
    """A server whose access log goes to a logger that the application has set up so."""
    (directory / "handled.py").write_text(source + APP)
    return serving("handled:app", arguments, directory=directory, access_log="logging", **options)


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize("kind", ["integration", "handler"])
@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_sentry_gets_the_exceptions_of_the_application_with_their_frames(tmp_path, arguments, kind):
    pytest.importorskip("sentry_sdk")
    environment = {"EVENTS": str(tmp_path / "events")} | ({"SENTRY_HANDLER": "1"} if kind == "handler" else {})
    with serving("srv_sentry:app", arguments, environment=environment) as server:
        assert server.get("/fails?one%20two").status == 500
        (event,) = eventually(lambda: entries(tmp_path / "events"), "the event")
        assert server.get("/").body == b"reported"
    assert (event["level"], event["logger"]) == ("error", "tailrace.error")
    assert "GET /fails?one%20two: exception in the application" in json.dumps(event["logentry"])
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("ValueError", "asked for one%20two")
    frames = exception["stacktrace"]["frames"]
    assert [frame["function"] for frame in frames[-2:]] == ["app", "broken"]
    assert frames[-1]["context_line"].strip() == 'raise ValueError(f"asked for {what}")'
    assert len(entries(tmp_path / "events")) == 1


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_opentelemetry_gets_exceptions_and_responses_with_their_fields(tmp_path, arguments):
    pytest.importorskip("opentelemetry.sdk._logs")
    path = tmp_path / "records"
    options = {"access_log": "logging", "access_log_format": "{method} {target} {status}"}
    with serving("srv_telemetry:app", arguments, environment={"RECORDS": str(path)}, **options) as server:
        server.get("/?a=b")
        server.get("/fails?one")
        eventually(lambda: sum("status" in entry["attributes"] for entry in entries(path)) == 2, "both responses")
        eventually(lambda: any(entry["severity"] == "ERROR" for entry in entries(path)), "the exception")
        found = entries(path)
    (error,) = [entry for entry in found if entry["severity"] == "ERROR"]
    assert error["body"] == "GET /fails?one: exception in the application"
    assert (error["attributes"]["exception.type"], error["scope"]) == ("ValueError", "tailrace.error")
    assert "in broken" in error["attributes"]["exception.stacktrace"]
    response = next(entry for entry in found if entry["body"] == "GET /?a=b 200")
    assert response["scope"] == "tailrace.access"
    attributes = response["attributes"]
    assert (attributes["status"], attributes["bytes"], attributes["ending"]) == (200, 4, "complete")
    assert attributes["worker"] in (1, 2)


HANDLED = """
import logging

class ToFile(logging.Handler):
    def emit(self, record):
        with open("records", "a") as file:
            print(record.levelname, record.name, record.getMessage(), getattr(record, "status", ""), sep="|", file=file)

logging.getLogger("tailrace.access").addHandler(ToFile())
"""


@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_the_access_log_goes_to_a_logger(tmp_path, arguments):
    with handled(tmp_path, HANDLED, arguments, access_log_format="%(r)s 100%% %(s)s") as server:
        for number in range(20):
            server.get(f"/%d?{number}")
        # The last records are given to the handlers before the worker ends.
        assert server.stop() == 0
        lines = (tmp_path / "records").read_text().splitlines()
    wanted = [f"INFO|tailrace.access|GET /%d?{number} HTTP/1.1 100% 200|200" for number in range(20)]
    assert sorted(lines) == sorted(wanted)
    # Without --log-config, `tailrace` handles the records, too.
    assert server.log.count(" INFO: GET /%d?") == 20


def test_the_records_of_responses_obey_the_level_of_their_logger(tmp_path):
    with handled(tmp_path, HANDLED + "logging.getLogger('tailrace.access').setLevel('WARNING')\n") as server:
        server.get("/?one")
        assert server.stop() == 0
    assert not (tmp_path / "records").exists()
    assert "?one" not in server.log


BROKEN = """
import logging

def no_luck(record):
    raise SystemExit("no luck")

logging.getLogger("tailrace.access").addFilter(no_luck)
"""


def test_a_filter_that_raises_is_logged_once(tmp_path):
    with handled(tmp_path, BROKEN) as server:
        for _ in range(5):
            assert server.get("/").body == b"x"
        assert server.stop() == 0
    said = "a handler or filter of the logger tailrace.access raised an exception; further exceptions are not logged"
    assert server.log.count(said) == 1


HANGING = """
import logging, os, time

class Hanging(logging.Handler):
    def emit(self, record):
        while not os.path.exists("gate"):
            time.sleep(0.01)

logging.getLogger("tailrace.access").addHandler(Hanging())
"""


def test_a_slow_handler_holds_no_request_and_what_is_too_much_is_dropped(tmp_path):
    count = 12_000
    with handled(tmp_path, HANGING) as server:
        with server.client(30) as client:
            for _ in range(count // 100):
                client.send(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n" * 100)
                for _ in range(100):
                    assert client.response().status == 200
        (tmp_path / "gate").touch()
        assert server.logged("or the handlers of the logger tailrace.access, are slower than the responses")


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_a_handler_that_hangs_keeps_no_server_from_ending(tmp_path, arguments):
    with handled(tmp_path, HANGING, arguments, graceful_timeout=300) as server:
        for _ in range(5):
            assert server.get("/").body == b"x"
        assert server.stop() == 0


def test_the_level_of_the_servers_log_hides_no_response(tmp_path):
    with handled(tmp_path, HANDLED, log_level="error") as server:
        server.get("/?one")
        assert server.stop() == 0
    assert "?one" in (tmp_path / "records").read_text()


def test_an_object_of_the_log_has_the_fields_of_a_response(tmp_path):
    path = tmp_path / "log"
    with serving("srv_logs:app", log=path, log_format="json", access_log="logging") as server:
        server.get("/?a=b")
        eventually(lambda: "?a=b" in path.read_text(), "the entry")
        (entry,) = [each for each in entries(path) if each["logger"] == "tailrace.access"]
    assert (entry["status"], entry["target"], entry["worker"]) == (200, "/?a=b", 1)
    assert entry["client"].startswith("127.0.0.1:")
    assert re.fullmatch(r'127\.0\.0\.1 - - \[.*\] "GET /\?a=b HTTP/1\.1" 200 6 "-" "-"', entry["message"])
