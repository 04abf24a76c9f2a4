"""Hooks in a worker: around a request and at the stop; one that fails or hangs harms nothing else."""

import json
import os
import signal

import pytest
from harness.operated import Operated
from harness.wire import Client

APP = """
import os

def app(environ, start_response):
    body = environ.get("tests.seen", "unseen").encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""
WRITE = """
import json, os, threading

def write(*words):
    with open("turns", "a") as file:
        print(json.dumps([*words, os.getpid(), threading.current_thread() is threading.main_thread()]), file=file)
"""
AROUND = (
    WRITE
    + """
def on_start(): write("on_start")
def worker_start(worker): write("worker_start", worker.number, worker.pid)
def pre_request(environ):
    environ["tests.seen"] = "seen " + environ["PATH_INFO"]
def post_request(record): write("post_request", record["target"], record["status"], record["ending"])
def worker_stop(worker): write("worker_stop", worker.number, worker.pid)
def on_exit(): write("on_exit")
"""
)
MODES = ["threads", "gevent", "debug", "reload"]


@pytest.fixture(params=MODES)
def mode(request):
    """The arguments of each way to run an application."""
    if request.param == "gevent":
        pytest.importorskip("gevent")
    if request.param == "reload":
        pytest.importorskip("watchfiles")
        return ("--debug", "--reload")
    return () if request.param == "threads" else (f"--{request.param}",)


@pytest.fixture
def hooked(tmp_path):
    (tmp_path / "app.py").write_text(APP)

    def start(hooks, *arguments, **more):
        (tmp_path / "myhooks.py").write_text(hooks)
        return Operated(tmp_path, "app:app", "--hooks", "myhooks", *arguments, **more)

    return start


def turns(directory):
    return [json.loads(line) for line in (directory / "turns").read_text().splitlines()]


def test_the_hooks_of_a_worker_run_around_each_request_and_at_its_stop(hooked, tmp_path, mode):
    with hooked(AROUND, *mode) as server:
        server.logged("listening on")
        master = server.process.pid
        for number in range(3):
            assert server.get(f"/{number}?a=b").body == f"seen /{number}".encode()
        server.stop()
    called = turns(tmp_path)
    ((_, _, worker, _, _),) = (each for each in called if each[0] == "worker_start")
    assert (worker == master) == (mode == ("--debug",))
    assert called == [
        ["on_start", master, True],
        ["worker_start", 1, worker, worker, True],
        *(["post_request", f"/{number}?a=b", 200, "complete", worker, False] for number in range(3)),
        ["worker_stop", 1, worker, worker, True],
        ["on_exit", master, True],
    ]
    assert "WARNING" not in server.log


RAISING = """
def pre_request(environ):
    raise {error}
def post_request(record):
    raise {error}
def worker_stop(worker):
    raise {error}
"""


RAISED = ("OSError('no audit')", "SystemExit(4)", "GeneratorExit()")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        *((arguments, error) for arguments in ((), ("--preload",), ("--debug",)) for error in RAISED),
        *(((*arguments, "--reload"), RAISED[1]) for arguments in ((), ("--debug",))),
        (("--gevent",), RAISED[0]),
    ],
)
def test_hooks_that_raise_refuse_nothing_and_are_logged_once(hooked, arguments, error):
    with hooked(RAISING.format(error=error), *arguments) as server:
        server.logged("listening on")
        if "--debug" not in arguments:
            server.serves()
        processes = server.processes()
        for number in range(5):
            assert server.get(f"/{number}").body == b"unseen"
        assert server.processes() == processes
        server.stop()
    for hook in ("pre_request", "post_request"):
        said = f"the hook myhooks.{hook} raised an exception; further exceptions are not logged"
        assert server.log.count(said) == 1
    assert server.log.count("the hook myhooks.worker_stop failed: ") == 1
    assert server.log.count("Traceback") == 3
    assert server.process.returncode == 0


HANGING = """
import time
def pre_request(environ):
    if environ["PATH_INFO"] == "/hang":
        while True:
            time.sleep(0.01)
"""


@pytest.mark.parametrize("gevent", [(), ("--gevent",)], ids=["threads", "gevent"])
def test_a_request_whose_hook_hangs_meets_its_deadline_and_others_go_on(hooked, gevent):
    if gevent:
        pytest.importorskip("gevent")
    with hooked(HANGING, "--request-timeout", "500ms", *gevent) as server:
        server.serves()
        assert server.get("/hang").status == 504
        assert server.get("/other").body == b"unseen"
        server.stop()
    assert "in pre_request" in server.log
    assert "myhooks.pre_request raised" not in server.log, "it was interrupted"


STOPPING = {
    "sleeps": "import time\ndef worker_stop(worker):\n    time.sleep(3600)\n",
    "waits": "import socket\ndef worker_stop(worker):\n    a, b = socket.socketpair()\n    a.recv(1)\n",
    # One call in C that keeps the interpreter.
    "holds": "import itertools\ndef worker_stop(worker):\n    sum(itertools.repeat(0, 10**12))\n",
}


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize("way", STOPPING)
def test_a_stop_hook_that_hangs_is_named_and_does_not_hold_the_stop(hooked, mode, way):
    with hooked(STOPPING[way], *mode, "--graceful-timeout", "1") as server:
        server.logged("listening on")
        assert server.get().status == 200
        server.tell(signal.SIGTERM)
        assert server.process.wait(30) == (1 if way == "holds" and mode == ("--debug",) else 0)
    assert "in worker_stop" in server.log
    if way == "holds" and mode != ("--debug",):
        assert "exited with status 1 after its last request\n" in server.log
    if way != "holds":
        assert (
            "the hook myhooks.worker_stop has not returned after 3.0 s, so the process exits without waiting"
            in server.log
        )
        assert server.log.count("  File ") - server.log.count("/gevent/") == 1, "the hook's frame alone"


def test_a_stop_hook_has_the_rest_of_the_graceful_time(hooked, tmp_path):
    hook = WRITE + "import time\ndef worker_stop(worker):\n    time.sleep(4)\n    write('done')\n"
    with hooked(hook, "--graceful-timeout", "20") as server:
        server.serves()
        server.tell(signal.SIGTERM)
        assert server.process.wait(30) == 0
    assert [each[0] for each in turns(tmp_path)] == ["done"]
    assert "has not returned" not in server.log


COUNTS_ALARMS = f"""
import signal
{WRITE}
{APP}
signal.signal(signal.SIGALRM, lambda *_: write("alarm"))
"""
WAITS_FOR_ALARMS = """
import os, signal, time

def worker_stop(worker):
    signal.{alarm}
    while not os.path.exists("turns") or len(open("turns").readlines()) < {times}:
        time.sleep(0.01)
    write("done")
"""


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize(
    ("alarm", "times"), [("alarm(1)", 1), ("setitimer(signal.ITIMER_REAL, 0.2, 0.2)", 3)], ids=["once", "periodic"]
)
def test_an_alarm_of_a_stop_hook_calls_the_handler_of_the_application(hooked, tmp_path, mode, alarm, times):
    (tmp_path / "app.py").write_text(COUNTS_ALARMS)
    hook = WRITE + WAITS_FOR_ALARMS.format(alarm=alarm, times=times)
    with hooked(hook, *mode, "--graceful-timeout", "20") as server:
        server.logged("listening on")
        assert server.get().status == 200
        server.tell(signal.SIGTERM)
        assert server.process.wait(30) == 0
    called = [each[0] for each in turns(tmp_path)]
    assert called[:times] == ["alarm"] * times
    assert called.count("done") == 1
    assert times > 1 or len(called) == 2
    assert "has not returned" not in server.log


def test_a_stop_hook_that_hangs_after_its_alarm_still_meets_its_limit(hooked, tmp_path):
    (tmp_path / "app.py").write_text(COUNTS_ALARMS)
    hook = "import signal, time\ndef worker_stop(worker):\n    signal.alarm(1)\n    time.sleep(60)\n"
    with hooked(hook, "--graceful-timeout", "1") as server:
        server.serves()
        server.tell(signal.SIGTERM)
        assert server.process.wait(30) == 0
    assert [each[0] for each in turns(tmp_path)] == ["alarm"]
    assert "the hook myhooks.worker_stop has not returned after 3.0 s, so the process exits" in server.log


def test_each_replaced_worker_and_one_without_a_master_stops_with_its_hook(hooked, tmp_path):
    hook = WRITE + "def worker_stop(worker): write('stop', worker.generation)\n"
    with hooked(hook) as server:
        server.serves()
        server.tell(signal.SIGHUP)
        server.logged("reload complete")
        server.until(lambda: len(server.processes()) == 2, "the end of the first worker")
        assert len(turns(tmp_path)) == 1
        (worker,) = set(server.processes()) - {server.master}
        os.kill(server.master, signal.SIGKILL)
        server.until(lambda: len(turns(tmp_path)) == 2, "the second stop")
        assert [each[:3] for each in turns(tmp_path)][1] == ["stop", 2, worker]


def test_a_worker_that_never_started_has_no_stop(hooked, tmp_path):
    hook = WRITE + "def worker_start(worker): raise OSError('no cache')\ndef worker_stop(worker): write('stop')\n"
    pytest.importorskip("watchfiles")
    with hooked(hook, "--reload") as server:
        server.serves()
        assert b"no cache" in server.get().body
        server.stop()
    assert not (tmp_path / "turns").exists()


def test_the_application_keeps_its_name_in_the_log(hooked, tmp_path):
    (tmp_path / "app.py").write_text(
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
        "    return b'bare'\n"
    )
    with hooked("def pre_request(environ): pass\n") as server:
        server.serves()
        assert server.get().body == b"bare"
        server.logged(f"the application app ({tmp_path / 'app.py'}:1) returned bytes")
        server.stop()


def test_the_end_of_the_graceful_time_passes_through_a_hook_on_the_main_thread(hooked):
    hook = (
        "import sys, time\ndef pre_request(environ):\n    print('in the hook', file=sys.stderr)\n    time.sleep(60)\n"
    )
    with hooked(hook, "--debug", "--graceful-timeout", "0.5") as server:
        server.logged("listening on")
        with Client(server.address) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            server.logged("in the hook")
            server.tell(signal.SIGTERM)
            assert server.process.wait(30) == 0
    assert "GET / (" in server.log, "the request did not finish"
    assert "raised an exception" not in server.log
