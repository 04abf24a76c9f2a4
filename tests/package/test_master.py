"""The master inside this process, and as what `penstock.run` becomes with several workers."""

import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest

import penstock
from penstock import master, workers
from penstock.errors import ConfigError
from penstock.options import OPTIONS, worker_count
from penstock.settings import from_keywords


def app(environ, start_response):
    body = f"{os.getpid()} {environ['wsgi.multiprocess']}".encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


class Watch(logging.Handler):
    """Does something, once, when the log has a line with this text."""

    def __init__(self, text, then):
        super().__init__()
        self.text, self.then, self.lines = text, then, []

    def emit(self, record):
        self.lines.append(record.getMessage())
        if self.text in self.lines[-1] and self.then:
            then, self.then = self.then, None
            then()


@pytest.fixture
def logged():
    """Watches the log: `logged(text, then)`."""
    handlers = []
    level = logging.getLogger("penstock").level

    def watch(text, then):
        handlers.append(Watch(text, then))
        logging.getLogger("penstock").addHandler(handlers[-1])
        logging.getLogger("penstock").setLevel(logging.INFO)
        return handlers[-1].lines

    yield watch
    for handler in handlers:
        logging.getLogger("penstock").removeHandler(handler)
    logging.getLogger("penstock").setLevel(level)


def serve(**keywords):
    return master.serve(from_keywords({"bind": "127.0.0.1:0", **keywords}), app)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def handlers():
    return {number: signal.getsignal(number) for number in master.SIGNALS}


def children():
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return file.read().split()


def test_what_it_took_of_the_process_it_gives_back(logged):
    before = handlers(), children(), sorted(os.listdir("/proc/self/fd")), gc.get_freeze_count()
    logged("ready in", terminate)
    assert serve(workers=2) == 0
    assert (handlers(), children(), sorted(os.listdir("/proc/self/fd")), gc.get_freeze_count()) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_fork_that_fails_is_said_and_tried_again(logged, monkeypatch):
    forks = []
    fork = workers.fork

    def failing():
        forks.append(1)
        if len(forks) == 1:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(workers, "fork", failing)
    lines = logged("ready in", terminate)
    assert serve() == 0
    assert "worker 1 cannot be forked: Resource temporarily unavailable" in lines


def test_it_says_who_serves_where_once_a_worker_does(logged):
    lines = logged("ready in", terminate)
    serve(workers=1)
    assert lines[0] == f"penstock {penstock.__version__}, process {os.getpid()}, serves app with 1 worker"
    assert lines[1].startswith("listening on http://127.0.0.1:")
    assert lines[2].startswith("worker 1 (pid ")
    assert lines[-1] == "stopped"


def test_forks_are_the_main_threads_business():
    caught = []

    def elsewhere():
        try:
            penstock.run(app, bind="127.0.0.1:0", workers=2)
        except ConfigError as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert caught == ["worker processes are forked from the main thread: call this from there"]


def test_a_thread_has_no_workers():
    with pytest.raises(ConfigError, match="unknown option 'workers'"), penstock.serve_in_thread(app, workers=2):
        pytest.fail("not reached")


PROGRAM = """
import atexit, logging, os, signal, sys, penstock
logging.basicConfig(level="INFO", format="%(message)s")
print("loaded")
atexit.register(lambda: print("the program's end"))
def app(environ, start_response):
    body = f"{os.getpid()} {environ['wsgi.multiprocess']}".encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
penstock.run(app, bind="127.0.0.1:0", WORKERS)
assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("keywords", "multiprocess"), [("workers=2", "True"), ("max_requests=1000000", "False"), ("max_rss='9GB'", "False")]
)
def test_a_program_that_asks_for_workers_has_them_and_ends_once(tmp_path, keywords, multiprocess):
    (tmp_path / "program.py").write_text(PROGRAM.replace("WORKERS", keywords))
    program = subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with program:
        url = next(line.split()[-1] for line in program.stderr if line.startswith("listening on "))
        with urllib.request.urlopen(url, timeout=30) as response:
            pid, told = response.read().decode().split()
        assert int(pid) != program.pid
        assert told == multiprocess
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 7
        assert program.stdout.read() == "loaded\nthe program's end\n"


@pytest.mark.parametrize(
    ("workers", "debug", "count", "multiprocess"),
    [
        (1, False, 1, False),
        (3, False, 3, True),
        (3, True, 3, False),
        ("auto", False, len(os.sched_getaffinity(0)), len(os.sched_getaffinity(0)) > 1),
    ],
)
def test_how_many_workers(workers, debug, count, multiprocess):
    chosen = {option.name: option.default for option in OPTIONS} | {"workers": workers, "debug": debug}
    assert worker_count(chosen) == count
    assert penstock.options.core_settings(chosen)["multiprocess"] is multiprocess


def test_the_directory_keeps_the_name_that_the_operator_uses(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "current").symlink_to("one")
    monkeypatch.chdir(tmp_path / "current")
    monkeypatch.setenv("PWD", str(tmp_path / "current"))
    assert master._directory(None) == str(tmp_path / "current")
    assert master._directory("sub") == os.path.join(os.getcwd(), "sub")
    assert master._directory("/srv/current") == "/srv/current"
    for stale in (str(tmp_path), "/nowhere", "relative"):
        monkeypatch.setenv("PWD", stale)
        assert master._directory(None) == os.getcwd()
    monkeypatch.delenv("PWD")
    assert master._directory(None) == os.getcwd()
