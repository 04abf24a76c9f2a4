"""The loop of the master in this process, and `tailrace.run` with several workers."""

import errno
import gc
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
from harness.addresses import free_address

import tailrace
from tailrace.cli.envfile import Variables
from tailrace.cli.settings import from_keywords
from tailrace.errors import ConfigError, WorkerError
from tailrace.master import loop, main, recycle
from tailrace.master.service import Service
from tailrace.system import cgroup, signals
from tailrace.system.cgroup import Machine
from tailrace.system.signals import Stops
from tailrace.worker import fork, hooks
from tailrace.worker.main import WorkerSetup


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
    level = logging.getLogger("tailrace").level

    def watch(text, then):
        handlers.append(Watch(text, then))
        logging.getLogger("tailrace").addHandler(handlers[-1])
        logging.getLogger("tailrace").setLevel(logging.INFO)
        return handlers[-1].lines

    yield watch
    for handler in handlers:
        logging.getLogger("tailrace").removeHandler(handler)
    logging.getLogger("tailrace").setLevel(level)


def serve(**keywords):
    return main.serve(from_keywords({"bind": "127.0.0.1:0", **keywords}), app)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def handlers():
    return {number: signal.getsignal(number) for number in loop.SIGNALS}


def children():
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return file.read().split()


@pytest.mark.parametrize("options", [{}, {"status": "127.0.0.1:0"}], ids=["plain", "status"])
def test_after_the_end_handlers_children_and_descriptors_are_as_before(logged, options):
    # What other tests have left behind would be closed in the meantime.
    gc.collect()
    before = handlers(), children(), sorted(os.listdir("/proc/self/fd"))
    # From 3.12 on some objects are frozen from the beginning.
    frozen = gc.get_freeze_count()
    logged("ready in", terminate)
    assert serve(workers=2, **options) == 0
    assert (handlers(), children(), sorted(os.listdir("/proc/self/fd"))) == before
    assert gc.get_freeze_count() <= frozen
    assert signal.set_wakeup_fd(-1) == -1


def test_a_fork_that_fails_is_said_and_tried_again(logged, monkeypatch):
    forks = []
    original = fork.fork

    def failing():
        forks.append(1)
        if len(forks) == 1:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return original()

    monkeypatch.setattr(fork, "fork", failing)
    lines = logged("ready in", terminate)
    assert serve() == 0
    assert re.search(
        "cannot fork worker 1: Resource temporarily unavailable; raise the limit of .*; trying again", str(lines)
    )


def test_an_exception_before_the_report_of_a_worker_is_logged(monkeypatch, tmp_path):
    def fails(*arguments):
        raise RuntimeError("before the report")

    monkeypatch.setattr(loop.worker_main, "work", fails)
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("tailrace").addHandler(handler)
    with pytest.raises(WorkerError, match="exited with status 1"):
        serve(workers=1)
    logging.getLogger("tailrace").removeHandler(handler)
    handler.close()
    said = (tmp_path / "log").read_text()
    assert "ended before it could report why" in said
    assert "RuntimeError: before the report" in said


def test_the_first_ready_worker_logs_application_and_addresses(logged):
    lines = logged("ready in", terminate)
    serve(workers=1)
    assert lines[0] == f"tailrace {tailrace.__version__}, process {os.getpid()}, serves app with 1 worker"
    assert lines[1].startswith("listening on http://127.0.0.1:")
    assert lines[2].startswith("worker 1 (pid ")
    assert lines[-1] == "stopped"


def test_forks_are_the_main_threads_business():
    caught = []

    def elsewhere():
        try:
            tailrace.run(app, bind="127.0.0.1:0", workers=2)
        except ConfigError as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert caught == ["worker processes are forked from the main thread: call this function there"]


def test_a_thread_has_no_workers():
    with (
        pytest.raises(ConfigError, match="in the current process only"),
        tailrace.serve_in_thread(app, workers=2),
    ):
        pytest.fail("not reached")


PROGRAM = """
import atexit, logging, os, signal, sys, tailrace
logging.basicConfig(level="INFO", format="%(message)s")
print("loaded")
atexit.register(lambda: print("the program's end"))
def app(environ, start_response):
    body = f"{os.getpid()} {environ['wsgi.multiprocess']}".encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
tailrace.run(app, bind="127.0.0.1:0", WORKERS)
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


def test_a_worker_that_has_grown_is_replaced_before_its_container_is_full(tmp_path, monkeypatch, logged):
    (tmp_path / "memory.current").write_text(str(500 << 20))
    (tmp_path / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    monkeypatch.setattr(cgroup, "machine", lambda: Machine(2, memory=512 << 20, accounts=tmp_path))
    # The worker begins with the memory of this process, which may have run many tests.
    monkeypatch.setattr(recycle, "_GROWTH", 0.05)
    address, ballast = free_address(), []

    def growing(environ, start_response):
        ballast.append(b"x" * (200 << 20))
        return app(environ, start_response)

    first = []

    def grow():
        with urllib.request.urlopen(address.url, timeout=30) as response:
            first.append(response.read().decode().split()[0])

    logged("ready in", grow)
    lines = logged("has grown by", lambda: logged("ready in", terminate))
    with signals.handled({signal.SIGALRM: lambda number, frame: terminate()}):
        # It ends also if no worker is replaced.
        signal.alarm(20)
        assert main.serve(from_keywords({"bind": address.bind, "max_rss": "auto"}), growing) == 0
        signal.alarm(0)
    (line,) = [line for line in lines if "has grown by" in line]
    assert re.fullmatch(
        rf"worker 1 \(pid {first[0]}\) has grown by (19\d|20\d) MiB \(--max-rss auto\); "
        r"500 MiB of 512 MiB \(cgroup limit\) in use; replacing it",
        line,
    )
    assert [line.partition(":")[2] for line in lines if "client memory" in line] == [
        " 1 worker, 128 MiB of client memory; workers are replaced before 460 MiB are in use"
    ]


@pytest.mark.parametrize(("debug", "hang_timeout"), [(False, 30.0), (True, 0.0)])
def test_a_breakpoint_does_not_count_as_a_hang(debug, hang_timeout):
    chosen = from_keywords({"debug": debug}).effective
    setup = WorkerSetup(None, None, hooks.Hooks(), Variables(None))
    assert loop.Master(chosen, [], setup, Service(), Stops())._hang_timeout == hang_timeout


def test_a_worker_that_was_ready_before_the_signal_has_served(monkeypatch):
    """SIGINT before any worker served is another exit status."""
    wait, sent = loop.Master._wait, []

    def wait_for_both(self):
        wait(self)
        reports = [each.report for each in self._plan.workers if each.report >= 0]
        if not sent and select.select(reports, [], [], 0)[0]:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.Master, "_wait", wait_for_both)
    assert serve() == 0
    assert sent


def test_a_worker_whose_report_comes_after_the_signal_has_served(monkeypatch):
    """It serves before it reports, and its client may be the one that stops the server."""
    read, sent = loop.Master._read_reports, []

    def read_late(self):
        reports = [each.report for each in self._plan.workers if each.report >= 0]
        if sent or not select.select(reports, [], [], 0)[0]:
            read(self)
            return
        sent.append(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        while not self._plan.is_stopping:
            for number, at in self._signals():
                self._handle_signal(number, at)
        # The report is read in the next round, or with the end of the worker.

    monkeypatch.setattr(loop.Master, "_read_reports", read_late)
    assert serve() == 0
    assert sent


def test_a_worker_that_reports_and_dies_in_one_round_has_served(monkeypatch):
    """Else the first one would end the server, as one that never came as far as serving."""
    read, killed = loop.Master._read_reports, []

    def read_late(self):
        reports = {each.report: each for each in self._plan.workers if each.report >= 0}
        found = [] if killed else select.select(list(reports), [], [], 0)[0]
        if not found:
            read(self)
            return
        killed.append(reports[found[0]].pid)
        os.kill(killed[0], signal.SIGKILL)
        os.waitid(os.P_PID, killed[0], os.WEXITED | os.WNOWAIT)

    ready = loop.Master._is_ready
    pids = []

    def note(self, each, *arguments, **keywords):
        ready(self, each, *arguments, **keywords)
        pids.append(each.pid)
        if len(pids) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop.Master, "_read_reports", read_late)
    monkeypatch.setattr(loop.Master, "_is_ready", note)
    assert serve() == 0
    assert pids[0] == killed[0]
