"""The reference pages state what the code has: signals, hooks, keys of `environ`, public names, exit statuses."""

import ast
import inspect
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import click
import pytest
import tailrace_tools.timing
from harness.addresses import Address, address_of, free_address
from harness.pages import DOCS, ROOT, blocks, codes, rows, sections, text_of
from harness.server import Server
from harness.settings import server_settings
from harness.tools import need_module
from harness.wire import Client
from tailrace_tools.doctor import run as doctor

import tailrace
from tailrace import errors
from tailrace.cli.arguments import OfPackage
from tailrace.command import cli
from tailrace.master import loop
from tailrace.system import early
from tailrace.worker import hooks, single
from tailrace.worker import main as worker
from tailrace.worker.report import STACKS
from tailrace.worker.warmup import environ_of as environ_of_warmup

HERE = Path(__file__).parent
SIGNALS, HOOKS, API = (DOCS / "reference" / f"{name}.md" for name in ("signals", "hooks", "api"))


# Signals


def test_every_signal_to_the_master_has_an_entry():
    described = re.findall(r"^### (.*)$", sections(SIGNALS, 2)["To the master"], re.MULTILINE)
    assert sorted(described) == sorted(number.name for number in loop.SIGNALS)


def test_every_signal_to_a_worker_has_an_entry():
    handled = {*worker._SERVING, *worker._MASTERS_SIGNALS, signal.SIGURG}
    described = [name for row in rows(SIGNALS, "worker") for name in row[0].split(", ")]
    assert sorted(described) == sorted([*(number.name for number in handled), signal.Signals(STACKS).name])


def test_the_signals_that_a_worker_ignores_are_those_of_the_row():
    (row,) = [row for row in rows(SIGNALS, "worker") if row[1].startswith("ignored")]
    assert row[0].split(", ") == [number.name for number in worker._MASTERS_SIGNALS]


def test_the_signals_of_a_server_without_a_master_are_in_its_table():
    table = sections(SIGNALS, 2)["To a server without a master"]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| SIG")]
    handled = {name.strip() for cell in first[:-1] for name in cell.split(",")}
    assert handled == {number.name for number in (*single.STOP_SIGNALS, signal.SIGUSR1)}
    left = {name.strip() for name in first[-1].split(",")}
    assert handled | left | {"SIGURG", "SIGCHLD"} == {number.name for number in loop.SIGNALS}


# Hooks

WATCHED = """
import json, os, threading

def note(name, seen=None):
    is_main = threading.current_thread() is threading.main_thread()
    line = {{"hook": name, "pid": os.getpid(), "main": is_main, "seen": seen}}
    with open({path!r}, "a") as file:
        file.write(json.dumps(line) + "\\n")

def on_start(): note("on_start")
def post_fork(worker): note("post_fork", dir(worker))
def worker_start(worker): note("worker_start", dir(worker))
def pre_request(environ): note("pre_request")
def post_request(record): note("post_request", {{key: type(value).__name__ for key, value in record.items()}})
def worker_stop(worker): note("worker_stop", dir(worker))
def worker_exit(worker): note("worker_exit", [worker.exit_status, worker.exit_signal, worker.ending])
def on_exit(): note("on_exit")
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The calls of all hooks of a server that has served a request, in their order, and the master's process id."""
    folder = tmp_path_factory.mktemp("hooks")
    path = folder / "calls"
    (folder / "hooks.py").write_text(WATCHED.format(path=str(path)))
    with Server("echo:app", hooks=folder / "hooks.py") as server:
        with Client(server.address) as client:
            assert client.ask(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").status == 200
        master = server.process.pid
    return [json.loads(line) for line in path.read_text().splitlines()], master


def entries():
    """The sections of the page that describe a hook."""
    return {name: text for name, text in sections(HOOKS, 2).items() if "- Runs in: " in text}


def test_every_hook_has_an_entry_with_its_signature():
    assert list(entries()) == list(hooks._ARGUMENT)
    for name, text in entries().items():
        assert codes(text)[0] == f"{name}({hooks._ARGUMENT[name]})"
        for part in ("- Runs in: ", "- May block: ", "- Exception: "):
            assert text.count(part) == 1, f"{name}: {part}"


def test_each_hook_runs_where_its_entry_says(watched):
    calls, master = watched
    assert {call["hook"] for call in calls} == set(entries())
    for call in calls:
        where = re.search(r"- Runs in: the (\w+), (.*)", entries()[call["hook"]])
        assert where[1] == ("master" if call["pid"] == master else "worker"), call
        assert where[2].startswith("main thread") == call["main"], call


def test_the_order_is_that_of_the_page(watched):
    calls, _ = watched
    names = [call["hook"] for call in calls]
    shown = [
        name
        for row in re.findall(r"^\| (start|request|stop) \| (.*) \|$", HOOKS.read_text(), re.MULTILINE)
        for name in codes(row[1])
    ]
    # The record of the response comes by itself, before the worker ends or not.
    assert [name for name in names if name != "post_request"] == [name for name in shown if name != "post_request"]


def test_the_worker_of_a_hook_has_the_attributes_of_the_table(watched):
    calls, _ = watched
    shown = [name for row in rows(HOOKS, "worker") for name in codes(row[0])]
    public = [*(each.name for each in fields(hooks.WorkerInfo)), "ending"]
    assert shown == public
    (started,) = [call["seen"] for call in calls if call["hook"] == "worker_start"]
    assert sorted(shown) == [name for name in started if not name.startswith("_")]
    assert [call["seen"] for call in calls if call["hook"] == "worker_exit"] == [[0, None, "status 0"]]


# environ


def environ_of(address, head=b"GET / HTTP/1.1\r\nHost: shop.example\r\n", body=b""):
    """Asks the application below."""
    with Client(address) as client:
        return client.ask(head + b"Connection: close\r\n\r\n" + body)


def test_every_key_of_environ_has_a_row_with_its_type(tmp_path):
    seen = []

    def app(environ, start_response):
        seen.append(dict(environ))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    path = f"{tmp_path}/s"
    with tailrace.serve_in_thread(app, bind=["127.0.0.1:0", f"unix:{path}"]) as server:
        environ_of(address_of(server.url))
        environ_of(Address(path=path))
        post = b"POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n"
        environ_of(address_of(server.url), post, b"hi")
        asks = b"Host: shop.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        environ_of(address_of(server.url), b"GET / HTTP/1.1\r\n" + asks)
    with tailrace.serve_in_thread(app, bind="127.0.0.1:0", early_hints=True) as server:
        environ_of(address_of(server.url))
    table = {name: row[1:3] for row in rows(API, "keys") for name in codes(row[0])}
    warm = table.pop("tailrace.warmup")
    assert (warm[0], environ_of_warmup("/", server_settings())["tailrace.warmup"]) == ("`bool`", True)
    assert set(table) == {key for environ in seen for key in environ if not key.startswith("HTTP_")}
    kinds = {"str": str, "bool": bool, "tuple": tuple}
    for key, (kind, when) in table.items():
        values = [environ[key] for environ in seen if key in environ]
        assert (when == "always") == (len(values) == len(seen)), key
        (name,) = codes(kind)
        for value in values:
            if name == "function":
                assert callable(value), key
            elif name == "object":
                assert not callable(value), key
                assert type(value) not in kinds.values(), key
            else:
                assert type(value) is kinds[name], key


def test_the_functions_of_environ_take_what_their_entries_say():
    said = {}

    def app(environ, start_response):
        said["record"] = environ["tailrace.delivery"]()
        said["gone"] = environ["tailrace.client_disconnected"]()
        for value in (-1, float("inf")):
            with pytest.raises(ValueError, match="not negative"):
                environ["tailrace.set_deadline"](value)
        environ["tailrace.set_deadline"](None)
        said["late"] = environ["tailrace.set_deadline"]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    with tailrace.serve_in_thread(app) as server:
        assert environ_of(address_of(server.url)).status == 200
    assert said["gone"] is False
    with pytest.raises(RuntimeError):
        said["late"](1)
    shown = [name for row in rows(API, "record") for name in codes(row[0])]
    assert set(shown) - set(said["record"]) == {"method", "target", "client", "id", "trace", "ended"}
    assert set(said["record"]) < set(shown)


# The Python API


def public_names():
    """Every public name, as the page's headings write it, with its object."""
    gevent = need_module("tailrace.gevent")
    for prefix, module in (
        ("tailrace", tailrace),
        ("tailrace.gevent", gevent),
        ("tailrace_tools.timing", tailrace_tools.timing),
    ):
        for name in module.__all__:
            yield f"{prefix}.{name}", getattr(module, name)


def is_exception(value):
    return isinstance(value, type) and issubclass(value, BaseException)


def test_every_public_name_has_an_entry():
    found = dict(public_names())
    of_environ = re.findall(r"^### (.*)", sections(API, 2)["environ"], re.MULTILINE)
    assert set(sections(API, 3)).difference(of_environ) == {
        name for name, value in found.items() if not is_exception(value)
    }
    shown = {name for row in rows(API, "exceptions") for name in codes(row[0])}
    assert shown == {name for name, value in found.items() if is_exception(value)}


def test_the_bases_of_exceptions_are_those_of_the_table():
    found = dict(public_names())
    for row in rows(API, "exceptions"):
        (name,) = codes(row[0])
        assert codes(row[1]) == [base.__name__ for base in found[name].__bases__], name


def shown_signature(block):
    """The parameters of the function that a block shows: name, kind and default of each."""
    (node,) = ast.parse(block.text).body
    if isinstance(node, ast.ClassDef):
        (node,) = node.body
    given = node.args
    plain = [argument.arg for argument in given.args if argument.arg != "self"]
    defaults = [inspect.Parameter.empty] * (len(plain) - len(given.defaults)) + [*map(ast.literal_eval, given.defaults)]
    found = list(zip(plain, defaults, strict=True))
    if given.vararg:
        found.append((given.vararg.arg, inspect.Parameter.empty))
    found += [
        (argument.arg, ast.literal_eval(value))
        for argument, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return node.name, found, given.kwarg.arg if given.kwarg else None


def test_signatures_are_those_of_the_code():
    found = dict(public_names())
    lines = text_of(API)
    checked = 0
    for block in blocks(API):
        if not re.search(r": \.\.\.\n\Z", block.text):
            continue
        heading = [line for number, line in lines if number < block.line and line.startswith("### ")][-1]
        name = heading.removeprefix("### ")
        parameters = inspect.signature(found[name]).parameters.values()
        named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        (rest,) = [each.name for each in parameters if each.kind is each.VAR_KEYWORD] or [None]
        function, shown, shown_rest = shown_signature(block)
        assert function in (name.rpartition(".")[2], "__init__")
        assert [each for each, _ in shown] == [each.name for each in named], name
        assert shown_rest == rest, name
        for (each, default), ours in zip(shown, named, strict=True):
            assert default is ... or default == ours.default, f"{name}: {each}"
        checked += 1
    assert checked == 11


def test_members_of_the_server_of_gevent_are_those_of_the_table():
    server = dict(public_names())["tailrace.gevent.Server"]
    shown = {text for row in rows(API, "server") for text in codes(row[0])[:1]}
    members = set()
    for name, value in inspect.getmembers(server):
        if name.startswith("_"):
            continue
        if inspect.isfunction(value):
            _, *parameters = inspect.signature(value).parameters.values()
            name += f"({', '.join(f'{each.name}={each.default!r}' for each in parameters)})"
        members.add(name)
    assert members == shown


def test_the_delivery_record_has_the_keys_of_the_table(watched):
    calls, _ = watched
    (record,) = [call["seen"] for call in calls if call["hook"] == "post_request"]
    table = {name: codes(row[1])[0] for row in rows(API, "record") for name in codes(row[0])}
    assert set(record) == set(table)
    assert {key: kind for key, kind in record.items() if kind != "NoneType"} == {
        key: kind for key, kind in table.items() if record[key] != "NoneType"
    }


# Exit statuses


def raised(kind=errors.TailraceError):
    """The statuses of the exceptions with which the command ends."""
    return {kind.exit_status}.union(*(raised(each) for each in kind.__subclasses__()))


def test_every_status_has_a_row():
    statuses = raised() | {
        0,
        early.STATUS,
        loop.INTERRUPTED,
        doctor.FOUND,
        doctor.WRONG_USE,
        click.UsageError.exit_code,
    }
    assert [int(row[0]) for row in rows(SIGNALS, "statuses")] == sorted(statuses)


def test_every_command_has_a_row():
    found = []
    for name, command in cli.commands.items():
        loaded = command.loaded() if isinstance(command, OfPackage) else command
        inner = loaded.commands if isinstance(loaded, click.Group) else {"": None}
        found += [f"tailrace {name} {each}".strip() for each in inner]
    assert sorted(codes(row[0])[0] for row in rows(SIGNALS, "commands")) == sorted(found)
    assert all(len(row) == 1 + len(rows(SIGNALS, "statuses")) for row in rows(SIGNALS, "commands"))


def test_the_statuses_of_processes_are_those_of_the_code():
    panicked = re.search(r"PANICKED: i32 = (\d+)", (ROOT / "crates/server/src/server/failing.rs").read_text())[1]
    shown = [int(row[0]) for row in rows(SIGNALS, "processes")]
    assert shown == [0, 1, errors.CANNOT_START, int(panicked)]


def start(line, directory):
    """Starts a command, with an address where nothing listens instead of port 9000."""
    words = shlex.split(line.replace("127.0.0.1:9000", free_address().bind))
    assert words[0] == "tailrace"
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace", *words[1:]],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# Without a terminal, `tailrace top` is used in a wrong way.
OUTCOMES = [
    ("tailrace --version", 0),
    ("tailrace config", 0),
    ("tailrace config --workers many", 2),
    ("tailrace", 2),
    ("tailrace shop:app --gevent --preload", 2),
    ("tailrace shop:app --config missing.toml", 2),
    ("tailrace shopp:app", 3),
    ("tailrace shop:app --hooks missing", 3),
    ("tailrace shop:app --bind 192.0.2.1:8000", 1),
    ("tailrace doctor shop:app", 0),
    ("tailrace doctor shop:app --url /bare", 1),
    ("tailrace doctor shopp:app", 3),
    ("tailrace doctor --live --status 127.0.0.1:9000", 2),
    ("tailrace threads --status 127.0.0.1:9000", 1),
    ("tailrace threads", 2),
    ("tailrace top --status 127.0.0.1:9000", 2),
    ("tailrace publish news text --to 127.0.0.1:9001", 1),
    ("tailrace publish news text", 2),
    ("tailrace trace nothing", 2),
    ("tailrace migrate missing.ini", 2),
    ("tailrace static list", 2),
    ("tailrace compare --only nothing", 2),
]


@pytest.mark.parametrize(("line", "status"), OUTCOMES)
def test_a_command_has_its_status(line, status, tmp_path):
    shutil.copy(HERE / "shop.py", tmp_path)
    with start(line, tmp_path) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == status, output


def test_an_interruption_before_a_worker_serves_has_its_status(tmp_path):
    (tmp_path / "slow.py").write_text("print('loading', flush=True)\nimport time\ntime.sleep(600)\n")
    with start(f"tailrace slow:app --bind {free_address().bind}", tmp_path) as process:
        while "loading" not in (line := process.stdout.readline()):
            assert line, "the server ended by itself"
        process.send_signal(signal.SIGINT)
        # Reads what is left, so that the server never waits for this test.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        assert process.wait(60) == early.STATUS
