"""`tailrace doctor`: each finding by an application that causes it and by one that does not."""

import importlib
import inspect
import json
import random
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import click
import flask
import pytest
from click.testing import CliRunner
from harness.addresses import free_address
from harness.operated import operating
from harness.programs import tailrace
from harness.settings import server_settings
from harness.status import reachable
from package.in_status import endpoint
from server.probes import eventually
from tailrace_tools.command import DOCTOR
from tailrace_tools.doctor import show
from tailrace_tools.doctor.asking import request
from tailrace_tools.doctor.examine import examine
from tailrace_tools.doctor.findings import RULES, findings, hints, joined_code
from tailrace_tools.doctor.measured import Named
from tailrace_tools.live import ask

from tailrace import hold
from tailrace.cli.options import OPTIONS
from tailrace.cli.settings import from_keywords
from tailrace.command import cli, main
from tailrace.commands import Loaded
from tailrace.findings import figures
from tailrace.findings.finding import JOINED, LISTED, MANY, PAUSE, RAISED, WRAPPED
from tailrace.status import responses
from tailrace.worker import core

DOCS = (Path(__file__).resolve().parents[3] / "docs/doctor.md").read_text()
ROWS = [b"%d,a name,a place\n" % number for number in range(500)]
# Does not compress.
NOISE = random.Random("noise").randbytes(20_000)
# Longer than the least file that is advised to be left to the server.
LINES = random.Random("lines").randbytes(80_000).replace(b"\n", b".")
LINES = b"".join(LINES[start : start + 99] + b"\n" for start in range(0, len(LINES), 99))


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "noise.bin"
    path.write_bytes(LINES)
    return path


def measured(app, url="/", *, method=None, headers=(), body=None, options=None, **given):
    chosen = server_settings(app="shop:app", **(options or {}))
    return examine(Loaded(app, chosen), request(url, method, headers, body), "shop:app", **{"times": 1, **given})


def found(app, url="/", **given):
    return {one.key: one for one in findings(measured(app, url, **given))}


def returns(body, *fields, status="200 OK"):
    """An application that returns this, or what calling it gives."""

    def app(environ, start_response):
        start_response(status, list(fields))
        return body() if callable(body) else body

    return app


def raises(environ, start_response):
    raise LookupError("no such report")


def raises_in_its_iterable(environ, start_response):
    start_response("200 OK", [])
    yield b"a"
    raise LookupError("no such report")


def exits(environ, start_response):
    raise SystemExit(3)


def forgets_start_response(environ, start_response):
    return [b"a"]


def writes(environ, start_response):
    write = start_response("200 OK", [])
    write(b"a")
    return []


def does_not_write(environ, start_response):
    start_response("200 OK", [])
    return [b"a"]


class Blocks:
    """An iterable with a `close()`."""

    def __init__(self, blocks=(b"a",), error=None):
        self.blocks = blocks
        self.error = error

    def __iter__(self):
        return iter(self.blocks)

    def close(self):
        if self.error:
            raise self.error


class Optional(Blocks):
    """One whose `close()` takes an argument, and is an attribute of the object."""

    def __init__(self):
        super().__init__()
        self.close = self.end

    def end(self, is_broken=False):
        pass


class Upper:
    """Middleware that passes `close()` on or not, by its class."""

    def __init__(self, app):
        self.app = app

    def __call__(self, environ, start_response):
        return map(bytes.upper, self.app(environ, start_response))


class Closing(Upper):
    def __call__(self, environ, start_response):
        body = self.app(environ, start_response)
        return Passing(map(bytes.upper, body), body)


class Passing:
    def __init__(self, blocks, body):
        self.blocks = blocks
        self.body = body

    def __iter__(self):
        return self.blocks

    def close(self):
        if hasattr(self.body, "close"):
            self.body.close()


class Letting(Upper):
    """Middleware that lets file wrappers through."""

    def __call__(self, environ, start_response):
        body = self.app(environ, start_response)
        return body if isinstance(body, environ["wsgi.file_wrapper"]) else [b"".join(body)]


@pytest.fixture(autouse=True)
def opened():
    """Files that middleware did not close are closed at the end of the test."""
    yield
    for file in OPENED:
        file.close()
    OPENED.clear()


OPENED = []


def wraps(path):
    def app(environ, start_response):
        start_response("200 OK", [])
        OPENED.append(path.open("rb"))
        return environ["wsgi.file_wrapper"](OPENED[-1])

    return app


def lines_of(path):
    def app(environ, start_response):
        start_response("200 OK", [])
        with path.open("rb") as file:
            yield from file

    return app


def blocks_of(path):
    def app(environ, start_response):
        start_response("200 OK", [])
        with path.open("rb") as file:
            while block := file.read(8192):
                yield block

    return app


def paused(seconds):
    def app(environ, start_response):
        start_response("200 OK", [])
        yield b"a"
        time.sleep(seconds)
        yield b"b"

    return app


def inner(maker):
    """What the doctor calls the `app` that this function makes: before Python 3.11 code has no qualified name."""
    return f"{maker}.app" if sys.version_info >= (3, 11) else "app"


def length(number):
    return ("Content-Length", str(number))


CAUSES = {
    "exception": [raises, raises_in_its_iterable, exits, forgets_start_response, returns(None)],
    "not-bytes": [returns("text"), returns(["text"]), returns(lambda: (text for text in ["a"]))],
    "wrong-length": [returns([b"abc"], length(10)), returns([b"abc"], length(1)), returns([], length(3))],
    "close-failed": [returns(lambda: Blocks(error=LookupError("no connection")))],
    "close-missing": [Upper(returns(Blocks))],
    "bare-bytes": [returns(b"abc"), returns(bytearray(b"abc")), returns(memoryview(b"abc"))],
    "write-used": [writes],
    "small-blocks": [returns(lambda: iter(map(bytes, ROWS)))],
    "starving": [paused(2 * PAUSE / 1e3)],
    "no-length": [returns(lambda: (block for block in [b"a", b"b"]))],
    "uncompressed": [returns([b"".join(ROWS)])],
}
CAUSES_NOT = {
    "exception": [returns([b"a"])],
    "not-bytes": [returns([b"a"])],
    "wrong-length": [returns([b"abc"], length(3)), returns([b"abc"])],
    "close-failed": [returns(Blocks)],
    "close-missing": [Closing(returns(Blocks)), Upper(returns([b"a"])), returns(Blocks), Closing(returns(Optional))],
    "bare-bytes": [returns([b"abc"])],
    "write-used": [does_not_write],
    # A list has no step between its blocks, and those of a slow stream are not quick.
    "small-blocks": [
        returns(ROWS),
        returns(lambda: iter(ROWS)),
        returns(lambda: map(bytes, ROWS[: MANY - 1])),
        paused(2 * PAUSE / 1e3),
    ],
    "starving": [returns(lambda: iter([b"a", b"b"])), returns(lambda: time.sleep(PAUSE / 1e3) or [b"a"])],
    "no-length": [
        returns([b"a", b"b"]),
        returns(lambda: (block for block in [b"a"]), ("Content-Encoding", "gzip")),
        returns(lambda: (block for block in [b"a"]), length(1)),
    ],
    "uncompressed": [
        returns([NOISE]),
        returns([b"a" * 100]),
        returns([b"".join(ROWS)], ("Content-Encoding", "gzip")),
        returns([b"".join(ROWS)], ("Cache-Control", "no-transform")),
    ],
}
# Those with a file are tested below.
OF_FILES = {"wrapper-spoilt", "lines-of-file", "file-through-python"}


@pytest.mark.parametrize(("key", "app"), [(key, app) for key, apps in CAUSES.items() for app in apps])
def test_an_application_that_causes_a_finding_gets_it(key, app):
    one = found(app)[key]
    assert one.what
    assert one.cost
    assert one.change
    assert one.code


@pytest.mark.parametrize(("key", "app"), [(key, app) for key, apps in CAUSES_NOT.items() for app in apps])
def test_an_application_that_does_not_cause_a_finding_does_not_get_it(key, app):
    assert key not in found(app)


def slow(environ, start_response):
    time.sleep(0.15)
    start_response("200 OK", [])
    return [b"a"]


def test_a_slow_application_gets_a_hint_where_to_look_and_no_finding(modules, monkeypatch):
    modules(sluggish=f"import time\n{inspect.getsource(slow)}")
    (one,) = hints(measured(slow))
    took = re.fullmatch(r"The application took (\d+) ms until its first block\.", one.what)
    assert int(took[1]) >= 150
    ended = run("sluggish:slow")
    assert ended.return_value == 0
    assert "[before-first-block]" in ended.stdout
    assert re.search(
        r"tailrace threads --status ADDRESS\n.*\n *tailrace sluggish:slow --slow-request-log \d+ms", ended.stdout
    )
    assert ended.stdout.endswith("Nothing to fix in the delivery.\n")
    (told,) = json.loads(run("sluggish:slow", "--json").stdout)["hints"]
    assert (told["key"], told["cost_ms"] >= 150) == ("before-first-block", True)


@pytest.mark.parametrize("app", [returns([b"a"]), raises, paused(2 * PAUSE / 1e3)])
def test_an_application_that_is_not_slow_gets_no_hint(app):
    assert hints(measured(app)) == []


def test_every_finding_has_an_application_that_causes_it_and_one_that_does_not():
    keys = {rule.key for rule in RULES}
    assert keys == CAUSES.keys() | OF_FILES == CAUSES_NOT.keys() | OF_FILES


def test_a_file_wrapper_that_middleware_spoils_is_found_with_the_name_of_the_middleware(stored):
    one = found(Upper(wraps(stored)))["wrapper-spoilt"]
    assert "test_doctor.Upper" in one.what
    assert re.search(rf"{inner('wraps')} \(\S*test_doctor\.py:\d+\) made", one.what)


def test_middleware_that_iterates_a_file_wrapper_in_a_generator_is_named(stored):
    class Generator(Upper):
        def __call__(self, environ, start_response):
            yield from self.app(environ, start_response)

    assert "Generator" in found(Generator(wraps(stored)))["wrapper-spoilt"].what


def test_a_file_wrapper_that_reaches_the_server_is_not_spoilt(stored):
    for app in (wraps(stored), Letting(wraps(stored))):
        seen = measured(app)
        assert seen.delivery.path == "sendfile"
        assert not findings(seen)


def test_a_file_wrapper_that_nobody_reads_is_not_spoilt(stored):
    def app(environ, start_response):
        environ["wsgi.file_wrapper"](stored.open("rb")).close()
        start_response("304 Not Modified", [])
        return []

    assert not found(app)


def test_a_file_that_is_iterated_by_its_lines_is_found(stored):
    one = found(lines_of(stored))["lines-of-file"]
    assert "noise.bin" in one.what
    assert "file_wrapper" in one.code


def test_a_file_that_is_read_in_blocks_is_not_iterated_by_its_lines(stored):
    assert "lines-of-file" not in found(blocks_of(stored))


def test_lines_that_are_no_file_are_small_blocks():
    keys = found(returns(lambda: map(bytes, LINES.splitlines(keepends=True))))
    assert "lines-of-file" not in keys
    assert "small-blocks" in keys


def test_a_file_that_passes_through_python_is_found_with_the_option_that_would_send_it(stored):
    for app in (blocks_of(stored), returns(lambda: [stored.read_bytes()])):
        one = found(app, "/reports/noise.bin")["file-through-python"]
        assert f"tailrace shop:app \\\n    --static /reports={stored.parent}" in one.code
    assert f"--overlay {stored.parent}" in found(blocks_of(stored), "/noise.bin")["file-through-python"].code
    assert "--static" not in found(blocks_of(stored), "/report")["file-through-python"].code


def test_a_file_passes_through_python_where_the_server_would_send_it_sooner(tmp_path):
    small, large, huge = (tmp_path / name for name in ("small", "large", "huge"))
    for path, size in ((small, (64 << 10) - 1), (large, 64 << 10), (huge, 1 << 20)):
        path.write_bytes(random.randbytes(size))
    seen = [measured(returns(lambda path=path: [path.read_bytes()])) for path in (small, large, huge)]
    assert ["file-through-python" in [one.key for one in findings(each)] for each in seen] == [False, True, True]
    said = next(one for one in findings(seen[1]) if one.key == "file-through-python")
    assert said.cost.endswith("The difference is the most that can be saved.")
    # What a framework does for a file takes longer than that.
    flask_ = [replace(each, layers=(Named("flask.app.Flask"),)) for each in seen]
    assert ["file-through-python" in [one.key for one in findings(each)] for each in flask_] == [False, False, True]


def test_a_file_that_the_application_changes_or_the_server_sends_does_not_pass_through_python(stored):
    for app in (wraps(stored), returns(lambda: stored.open("rb")), returns(lambda: [stored.read_bytes()[1:]])):
        assert "file-through-python" not in found(app)


def test_a_file_that_the_application_writes_does_not_pass_through_python(tmp_path):
    def app(environ, start_response):
        (tmp_path / "cache").write_bytes(NOISE)
        start_response("200 OK", [])
        return [NOISE]

    assert not found(app)


def test_a_file_that_the_application_names_has_no_finding(stored):
    size = stored.stat().st_size
    app = returns([], length(size), ("X-Sendfile", str(stored)))
    chosen = from_keywords({"sendfile_root": str(stored.parent)}).effective
    seen = examine(Loaded(app, chosen), request("/", None, (), None), "shop:app", times=1)
    assert seen.response.body_bytes == size
    assert not findings(seen)


def test_a_function_that_takes_environ_and_another_callable_is_no_layer():
    def policy(environ, router):
        return Blocks()

    def app(environ, start_response):
        start_response("200 OK", [])
        policy(environ, print)
        return [b"a"]

    seen = measured(app)
    assert [layer.name.rpartition(".")[2] for layer in seen.layers] == ["app"]
    assert not findings(seen)


def test_an_unclosed_iterable_is_found_with_the_layer_that_does_not_close_it():
    one = found(Upper(returns(Blocks)))["close-missing"]
    assert "test_doctor.Blocks" in one.what
    assert "test_doctor.Upper" in one.what


def test_an_exception_is_found_with_its_type_text_and_line():
    what = found(raises)["exception"].what
    assert "LookupError" in what
    assert "no such report" in what
    assert re.search(r"test_doctor\.py:\d+", what)


def test_after_an_exception_the_application_is_not_called_again():
    calls = []

    def app(environ, start_response):
        calls.append(1)
        raise LookupError

    found(app, times=3)
    assert len(calls) == 1


def test_the_generator_that_makes_the_blocks_is_named_whatever_is_around_it():
    assert f"test_doctor.{inner('paused')}" in found(Closing(paused(2 * PAUSE / 1e3)))["starving"].what


def test_a_generator_that_makes_no_blocks_is_not_named():
    def each():
        for row in ROWS:
            yield b"%d" % sum(byte for byte in row)

    assert "each" in found(Closing(returns(each)))["small-blocks"].what
    assert measured(returns(lambda: [b"".join(row for row in ROWS)])).producer.name == "list"


def test_the_delivery_is_the_servers_own_record():
    seen = measured(returns([b"a" * 1000]), times=2)
    assert seen.delivery.path == seen.floor.path == "one-write"
    assert seen.delivery.writes == seen.floor.writes == 1
    assert (seen.delivery.blocks, seen.delivery.bytes, seen.delivery.runs) == (1, 1000, 2)
    assert seen.response.shares_read
    several = measured(returns(lambda: (block for block in [b"a" * 5000, b"b" * 6000])))
    assert (several.known.count, several.known.smallest, several.known.largest) == (2, 5000, 6000)
    assert several.response.header("Transfer-Encoding") == "chunked"
    assert several.response.body == b"a" * 5000 + b"b" * 6000
    assert several.response.framing_bytes > 0


def test_the_request_is_the_one_that_was_described():
    def app(environ, start_response):
        names = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_HOST", "HTTP_ACCEPT_ENCODING", "HTTP_COOKIE")
        text = json.dumps([*(environ.get(name) for name in names), environ["wsgi.input"].read().decode()])
        start_response("200 OK", [])
        return [text.encode()]

    seen = measured(app, "/a b?c=d", headers=("Host: shop.example", "Cookie: e=f"), body=b"sent")
    assert json.loads(seen.response.body) == ["POST", "/a b", "c=d", "shop.example", "gzip", "e=f", "sent"]


def test_a_client_that_does_not_take_gzip_gets_no_finding_about_it():
    assert "uncompressed" not in found(returns([b"".join(ROWS)]), headers=("Accept-Encoding: identity",))


def test_a_response_to_head_has_no_finding_about_its_body():
    assert not found(returns([], length(3)), method="HEAD")


def endless(seconds):
    def app(environ, start_response):
        start_response("200 OK", [])
        while True:
            yield random.randbytes(2000)
            time.sleep(seconds)

    return app


def test_a_response_that_does_not_end_is_left_after_the_time_out():
    seen = measured(endless(0.001), seconds=0.3)
    assert seen.response.is_cut
    assert "does not end" in show.as_text(seen, [], [])


def test_a_response_that_neither_ends_nor_goes_on_holds_a_thread():
    assert found(endless(2 * PAUSE / 1e3), seconds=0.5).keys() == {"starving"}


def test_a_path_that_the_server_answers_itself_is_said_to_be_so(stored):
    chosen = from_keywords({"static": {"/files": str(stored.parent)}}).effective
    seen = examine(Loaded(returns([b"a"]), chosen), request("/files/noise.bin", None, (), None), "shop:app")
    assert not findings(seen)
    assert "application was not called" in show.as_text(seen, [], [])


def test_what_is_printed_fits_80_columns(stored, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    apps = [app for apps in CAUSES.values() for app in apps] + [Upper(wraps(stored)), lines_of(stored)]
    for app in apps:
        seen = measured(app)
        for line in show.as_text(seen, findings(seen), hints(seen)).splitlines():
            assert len(click.unstyle(line)) < 80, line


def test_the_docs_have_a_row_for_each_finding_in_their_order():
    keys = [rule.key for rule in RULES]
    table = DOCS.partition("<!-- findings -->")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == keys
    # A running server finds no others, except these, which have a row of their own.
    assert set(figures.KEYS) - set(keys) == {"waiting-for-client", "memory-growth", "client-disconnected"}


def test_it_takes_every_option_of_a_server():
    assert {option.name for option in OPTIONS} <= {parameter.name for parameter in DOCTOR.params}


def test_the_docs_have_each_key_of_the_json(stored):
    def keys(value):
        if isinstance(value, dict):
            return set(value).union(*map(keys, value.values()))
        return set().union(*map(keys, value)) if isinstance(value, list) else set()

    seen = measured(Upper(wraps(stored)))
    found = keys(json.loads(show.as_json(seen, findings(seen), hints(seen))))
    assert "cost_ms" in found
    described = DOCS.partition("## `--json`")[2].partition("\n## ")[0]
    assert found == set(re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE))


@pytest.fixture
def shop(modules, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return modules(
        shop="""
            def app(environ, start_response):
                print("from the application")
                start_response("200 OK", [])
                return b"bare" if environ["PATH_INFO"] == "/bare" else [b"well"]

            def create(name):
                return app
        """
    )


def run(*arguments):
    # As the command does, and not as click does by default: an exit status is returned.
    return CliRunner().invoke(cli, ["doctor", *arguments], standalone_mode=False)


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain"])
def test_a_held_stream_is_named_and_nothing_is_to_be_fixed(kind):
    app = returns(lambda: (b"x" for _ in range(2 * MANY)), ("Content-Type", kind), *hold("a").items())
    it = measured(app, seconds=1.0)
    assert (it.delivery.path, it.delivery.ending, it.response.is_cut) == ("held", "complete", True)
    assert findings(it) == []
    said = show.as_text(it, [], [])
    assert "held: the holder process sends the response, without a thread" in said
    assert "the response stayed open for --timeout" in said
    assert "Nothing to fix. The response is held and occupies no thread." in said


def test_a_long_poll_is_measured_like_any_response():
    app = returns(lambda: (b"x" for _ in range(2 * MANY)), *hold("a", mode="response", timeout=1).items())
    it = measured(app)
    assert (it.delivery.path, it.response.body_bytes, it.response.is_cut) == ("held", 2 * MANY, False)
    assert findings(it) == []
    assert "Nothing to fix." in show.as_text(it, [], [])


def test_the_exit_status_says_whether_something_was_found(shop):
    well, bare = run("shop:app"), run("shop:create('a')", "--url", "/bare", "--times", "1")
    assert (well.return_value, bare.return_value) == (0, 1)
    assert "Nothing to fix." in well.stdout
    assert "[bare-bytes]" in bare.stdout
    assert "1 finding." in bare.stdout


def test_what_the_application_prints_is_not_in_the_json(shop):
    ended = run("shop:app", "--url", "/bare", "--json")
    assert [one["key"] for one in json.loads(ended.stdout)["findings"]] == ["bare-bytes"]
    assert "from the application" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no application"),
        (("shop:app", "--url", "report"), "starting with a slash: /report"),
        (("shop:app", "--url", "http://localhost/a?b"), "starting with a slash: /a"),
        (("shop:app", "--header", "Accept"), "write name and value"),
        (("shop:app", "--header", "Content-Length: 3"), "remove it"),
        (("shop:app", "--method", "G T"), "such as GET or POST"),
        (("shop:app", "--body", "missing.json"), "missing.json: cannot be read: No such file"),
        (("shop:app", "--times", "0"), "0 is not in the range"),
        (("--live",), "no server address: name one"),
        (("--live", "--status", "unix:/nowhere/s"), "no response from unix:/nowhere/s: No such file or directory"),
        (("--live", "--status", "nonsense"), "nonsense"),
        (("shop:ap",), "these could be the application: shop:app"),
        (("shop:app", "patched for gevent"), "name a module that does not patch"),
    ],
)
def test_wrong_use_is_one_line_and_its_status(shop, monkeypatch, capsys, arguments, message):
    if arguments[-1:] == ("patched for gevent",):
        arguments = arguments[:-1]
        monkeypatch.setattr(core, "threads_are_greenlets", lambda: True)
    monkeypatch.setattr(sys, "argv", ["tailrace", "doctor", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == (3 if arguments == ("shop:ap",) else 2)
    assert message in lines[0]
    assert len(lines) == 1 or (len(lines) == 2 and "--help" in lines[1])


@pytest.mark.parametrize(("place", "line"), [("view", 6), ("import", 2)])
def test_an_application_that_ends_its_process_is_named_in_one_line(tmp_path, place, line):
    (tmp_path / "ending.py").write_text(
        f"import os\n{'os._exit(3)' if place == 'import' else ''}\n"
        "def app(environ, start_response):\n"
        "    if (child := os.fork()) == 0:\n"
        "        os._exit(7)\n"
        "    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    ended = tailrace("doctor", "ending:app", cwd=tmp_path)
    assert ended.returncode == 3
    status = 3 if place == "import" else 7
    said = f"tailrace: error: ending:app ended its process with os._exit({status}) at ending.py:{line}, so there is no "
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1


FRAMEWORKS = """
import time

from flask import Flask, Response

app = Flask(__name__)
ROWS = [b"%d,a name,a place\\n" % number for number in range(500)]


@app.get("/events")
def events():
    def pausing():
        for number in range(3):
            yield f"data: {number}\\n\\n"
            time.sleep(0.1)
    return Response(pausing(), mimetype="text/event-stream")


@app.get("/many-events")
def many_events():
    return Response((b"data: a\\n\\n" for _ in range(500)), mimetype="text/event-stream")


@app.get("/bytes")
def of_bytes():
    return Response(row for row in ROWS)


@app.get("/text")
def of_text():
    return Response(row.decode() for row in ROWS)


@app.get("/slow")
def slow():
    time.sleep(0.3)
    return "done"
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An application of Flask in the module `site_of_flask`."""
    (tmp_path / "site_of_flask.py").write_text(FRAMEWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("site_of_flask")
    sys.modules.pop("site_of_flask")


@pytest.mark.parametrize("path", ["/events", "/many-events"])
def test_a_stream_of_events_has_no_finding(site, path):
    assert found(site.app, path) == {}
    ended = run("site_of_flask:app", "--url", path)
    assert (ended.return_value, "Nothing to fix." in ended.stdout) == (0, True)


@pytest.mark.parametrize("path", ["/bytes", "/text"])
def test_the_code_that_is_suggested_for_flask_gives_one_block(site, path):
    one = found(site.app, path)["small-blocks"]
    view = "def joined(blocks):\n" + textwrap.indent(one.code, "    ")
    given = {"Response": flask.Response}
    exec(view, given)
    with site.app.test_request_context():
        # A real view that is asked again.
        blocks = [row if path == "/bytes" else row.decode() for row in site.ROWS]
        response = given["joined"](block for block in blocks)
        assert list(response.iter_encoded()) == [b"".join(site.ROWS)]

    def joined():
        return response

    site.app.view_functions["of_bytes"] = joined
    assert "small-blocks" not in found(site.app, "/bytes")


def in_django(*lines):
    """What these lines write to standard output, in a process of their own: settings can be configured once."""
    program = "\n".join(
        [
            "import sys",
            "from django.conf import settings",
            "from django.http import FileResponse, HttpResponse",
            "settings.configure()",
            *lines,
        ]
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout


@pytest.mark.parametrize("blocks", [ROWS, [row.decode() for row in ROWS]], ids=["bytes", "text"])
def test_the_code_that_is_suggested_for_django_gives_one_block(blocks):
    layers = (Named("django.core.handlers.wsgi.WSGIHandler"),)
    code = joined_code(replace(measured(returns(ROWS)), layers=layers))
    joined = f"joined(block for block in {blocks!r})"
    code = "def joined(blocks):\n" + textwrap.indent(code, "    ")
    assert in_django(code, f"sys.stdout.buffer.write(b'|'.join({joined}))") == b"".join(ROWS)


def code_for(framework, remedy):
    """What a remedy of records has below the name of a framework, as a function."""
    code = remedy.code.partition(f"# {framework}:\n")[2].partition("\n# ")[0]
    code = f"try:\n    raise ReportError\n{code}" if code.startswith("except") else code
    return f"def view(blocks, path, page, ReportError):\n{textwrap.indent(code, '    ')}\n"


@pytest.mark.parametrize(
    ("remedy", "status", "body"),
    [(JOINED, 200, b"ab"), (LISTED, 200, b"ab"), (WRAPPED, 200, None), (RAISED, 500, b"sorry")],
    ids=["joined", "listed", "wrapped", "raised"],
)
def test_the_code_of_a_running_server_is_given_for_each_framework(site, stored, remedy, status, body):
    body = stored.read_bytes() if body is None else body
    given = {"Response": flask.Response, "send_file": flask.send_file}
    exec(code_for("Flask", remedy), given)
    site.app.view_functions["slow"] = lambda: given["view"](iter([b"a", b"b"]), stored, b"sorry", LookupError)
    got = site.app.test_client().get("/slow")
    assert (got.status_code, got.data) == (status, body)
    got.close()
    told = in_django(
        code_for("Django", remedy),
        f"got = view(iter([b'a', b'b']), {str(stored)!r}, b'sorry', LookupError)",
        f"assert got.status_code == {status}",
        "sys.stdout.buffer.write(b''.join(got))",
        "got.close()",
    )
    assert told == body
    assert remedy.code.startswith("# plain WSGI:\n")


@pytest.mark.parametrize(("name", "line"), [("flask.app.Flask", "return page, 500"), ("shop.app", "sys.exc_info()")])
def test_the_code_for_an_exception_is_that_of_the_framework(name, line):
    seen = replace(measured(raises), layers=(Named(name),))
    assert line in next(iter(findings(seen))).code


def test_the_code_that_is_suggested_for_an_application_runs(stored):
    for app, url, key in (
        (returns(lambda: iter(map(bytes, ROWS))), "/", "small-blocks"),
        (returns(lambda: (block for block in [b"a", b"b"])), "/", "no-length"),
        (blocks_of(stored), "/", "file-through-python"),
        (writes, "/", "write-used"),
        (returns(b"abc"), "/", "bare-bytes"),
        (returns(["text"]), "/", "not-bytes"),
        (returns([b"abc"], length(1)), "/", "wrong-length"),
    ):
        code = found(app, url)[key].code.partition("\n# or")[0]

        def fixed(environ, start_response, code=code):
            fields = [("Content-Type", "text/plain")]
            given = {
                "environ": environ,
                "fields": fields,
                "path": stored,
                "open": opened_file,
                "blocks": [b"a", b"b"],
                "block": b"a",
                "body": b"a" * 9000,
                "text": "a" * 9000,
            }
            names = ", ".join(given)
            lines = code if "return" in code else f"{code}\nreturn [body]"
            exec(f"def run({names}):\n" + textwrap.indent(lines, "    "), scope := {})
            made = scope["run"](**given)
            start_response("200 OK", fields)
            return made

        assert not {key, "exception", "not-bytes", "wrong-length"} & found(fixed, url).keys(), key


def opened_file(path, mode):
    OPENED.append(path.open(mode))
    return OPENED[-1]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("text/plain; charset=utf-8", ""), ("application/x-any", " --compress-types application/x-any")],
)
def test_what_is_suggested_for_a_large_body_compresses_it(kind, options):
    app = returns([b"".join(ROWS)], ("Content-Type", kind))
    assert found(app)["uncompressed"].code == f"tailrace shop:app --compress{options}"
    chosen = {"compress": True} | ({"compress_types": options.split()[1:]} if options else {})
    seen = measured(app, options=chosen)
    assert "uncompressed" not in {one.key for one in findings(seen)}
    compression = seen.delivery.compression
    assert (compression.coding, compression.of) == ("gzip", len(b"".join(ROWS)))
    assert compression.into == seen.response.body_bytes
    said = re.sub(r"\s+", " ", show.as_text(seen, [], []))
    assert f"compressed with gzip by another thread, from {compression.of:,} bytes to {compression.into:,}, in " in said
    assert json.loads(show.as_json(seen, [], []))["delivery"]["compression"]["into"] == compression.into


def test_a_live_server_with_a_stream_of_events_and_a_slow_view_of_flask(site, tmp_path):
    at = free_address()
    with operating(tmp_path, "site_of_flask:app", "--workers", "1", "--status", at.bind) as server:
        eventually(lambda: reachable(at), "the address of --status")
        assert [server.get(path).status for path in ("/events", "/slow")] == [200, 200]
        told = lambda: run("--live", "--status", at.bind, "--json")  # noqa: E731
        eventually(lambda: len(json.loads(told().stdout)["endpoints"]) >= 2, "both are counted")
        endpoints = {each["endpoint"]: each for each in json.loads(told().stdout)["endpoints"]}
        assert next(iter(endpoints)) == "GET /slow"
        slow = endpoints["GET /slow"]
        assert slow["cost_seconds"] == pytest.approx(slow["application_seconds"] - slow["delivery_seconds"], abs=2e-6)
        events = endpoints["GET /events"]
        assert (events["event_streams"], events["cost_seconds"], events["findings"]) == (1, 0.0, [])
        assert events["event_stream_seconds"] == events["application_seconds"]
        assert told().return_value == 0
        shown = run("--live", "--status", at.bind).stdout
        assert "1. GET /slow\n" in shown
        assert "[before-first-block]" in shown
        assert shown.endswith("Also nothing to fix, at little cost: GET /events (1).\n\n1 hint.\n")


def running(monkeypatch, *endpoints):
    """The document of a running server with these endpoints."""
    document = {
        "version": "1",
        "application": "shop:app",
        "workers": [],
        **responses.endpoints([list(endpoints)], "shop:app"),
    }
    monkeypatch.setattr(ask.Asked, "status", lambda asked: document)


SLOW_EXPORT = endpoint(
    "GET /export/*.csv",
    responses=2,
    blocks=20_000,
    body_bytes=400_000,
    writes=8,
    application_ns=3_000_000_000,
    delivery_ns=12_000_000,
    paths={"coalesced": 2},
    client_disconnected=1,
    times={"1.125": 1, "2.0": 1},
    total_ns=3_100_000_000,
)


def test_a_running_server_is_asked_for_the_endpoints_that_cost_most(monkeypatch):
    slow = endpoint("GET /slow", responses=40, application_ns=79_000_000_000, delivery_ns=4_000_000)
    running(monkeypatch, endpoint("GET /", responses=30), SLOW_EXPORT, slow)
    ended = run("--live", "--status", "127.0.0.1:9000")
    assert ended.return_value == 1
    lines = [line.strip() for line in ended.stdout.splitlines()]
    assert lines[0].startswith("shop:app at 127.0.0.1:9000: the 3 endpoints")
    titles = [line for line in lines if re.match(r"\d+\. ", line)]
    assert titles == ["1. GET /slow", "2. GET /export/*.csv"]
    first, second = lines[lines.index(titles[0]) : lines.index(titles[1])], lines[lines.index(titles[1]) :]
    assert "application  79.00 s (1,975 ms each)" in first
    assert any(line.startswith("cost         79.00 s") for line in first)
    assert "Nothing to fix in its delivery." not in first, "there is a hint"
    assert "- The application took 1,975 ms until its first block on average." in first
    assert "tailrace shop:app --slow-request-log 987ms" in first
    assert "responses    2: 2 coalesced; 1 client disconnected" in second
    assert "total        mean 1.55 s, p95 2.00 s to the last byte" in second
    assert "application  3.00 s (1,500 ms each)" in second
    assert "sent         20,000 blocks, 400,000 bytes, 8 system calls (4.0 a response)" in second
    assert "[small-blocks]" in second
    assert 'return [b"".join(blocks)]' in second
    # The time before the first block is a hint, and no finding.
    assert lines[-3:] == ["Also nothing to fix, at little cost: GET / (30).", "", "1 finding and 2 hints."]
    assert all(len(line) < 80 for line in ended.stdout.splitlines())
    running(monkeypatch, slow)
    assert run("--live", "--status", "127.0.0.1:9000").return_value == 0


def test_the_endpoints_that_have_grown_are_shown_with_how_much_since_when_and_how_certain_it_is(monkeypatch):
    def shown(*endpoints):
        running(monkeypatch, *endpoints)
        document = {**ask.Asked.status(None), "endpoints_since": "2026-11-28T10:31:07.000+00:00"}
        monkeypatch.setattr(ask.Asked, "status", lambda asked: document)
        ended = run("--live", "--status", "127.0.0.1:9000")
        return ended.return_value, " ".join(ended.stdout.split())

    # It costs so little that ten other endpoints cost more.
    others = [endpoint(f"GET /{each}x", application_ns=10**9) for each in range(25)]
    cart = endpoint("GET /cart", responses=1024, grown_responses=1024, grown_bytes=20 << 20, grown_variance=1024**2)
    status, text = shown(*others, cart)
    assert status == 1
    assert "11. GET /cart" in text and "memory +20.0 MiB (± 2.0), +20.0 KiB a response" in text
    assert "[memory-growth]" in text
    said = "Memory growth since 10:31:07 UTC: GET /cart +20.0 MiB (± 2.0), +20.0 KiB a response."
    assert said in text
    unsure = cart | {"grown_variance": (10 * 1024) ** 2}
    status, text = shown(endpoint("GET /", grown_bytes=-(2 << 20), grown_responses=1, grown_variance=1), unsure)
    assert status == 0
    assert "the workers grew by about 18.0 MiB since 10:31:07 UTC. It is not certain yet which endpoint" in text
    assert "Candidates: GET /cart +20.0 MiB (± 20.0), +20.0 KiB a response. Check again" in text
    assert "Memory" not in shown(endpoint("GET /"), unsure | {"grown_bytes": 3 << 20})[1]


def test_the_times_of_an_endpoint_exclude_event_streams_and_are_absent_if_there_are_no_others(monkeypatch):
    def totals(**more):
        running(monkeypatch, endpoint("GET /slow", responses=2, application_ns=1_000_000_000, **more))
        lines = run("--live", "--status", "127.0.0.1:9000").stdout.splitlines()
        return [line.split("total", 1)[1].strip() for line in lines if line.startswith("   total ")]

    assert totals(event_streams=1, times={"0.25": 1}, total_ns=240_000_000) == [
        "mean 240 ms, p95 250 ms to the last byte, without event streams"
    ]
    assert totals(event_streams=2, times={}, total_ns=0) == []


def test_what_a_running_server_tells_is_to_be_had_as_json(monkeypatch):
    running(monkeypatch, *(endpoint(f"GET /{each}x", responses=20 - each) for each in range(12)), SLOW_EXPORT)
    found = json.loads(run("--live", "--status", "127.0.0.1:9000", "--json").stdout)
    assert [each["endpoint"] for each in found["endpoints"]][:2] == ["GET /export/*.csv", "GET /0x"]
    assert (len(found["endpoints"]), found["endpoints_omitted"]) == (10, 3)
    assert found["endpoints"][0]["findings"][0]["cost_ms"] > 5


def test_a_running_server_with_nothing_to_fix_has_status_0(monkeypatch):
    running(monkeypatch, endpoint("GET /"))
    assert run("--live", "--status", "127.0.0.1:9000").return_value == 0
    running(monkeypatch)
    ended = run("--live", "--status", "127.0.0.1:9000")
    assert (ended.return_value, "not sent any responses yet" in ended.stdout) == (0, True)
