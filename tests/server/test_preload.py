"""`--preload`: the mold, which loads the application and forks the workers, and the master, which has no code of it."""

import os
import random
import re
import resource
import signal
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from harness.operated import Checking, Operated
from harness.server import children
from harness.status import reachable
from harness.wire import Client
from server.probes import eventually

APP = """
import gc
import logging
import os
import sqlite3

LOADED = os.getpid()
MARK = []

def is_frozen():
    return all(each is not MARK for each in gc.get_objects())

def app(environ, start_response):
    path = environ["PATH_INFO"][1:]
    if path == "who":
        body = f"{VERSION} {LOADED} {os.getpid()} {os.getppid()} {is_frozen()}".encode()
    elif path == "log":
        logging.getLogger("tailrace").warning("logged by %d", os.getpid())
        body = b""
    else:
        body = b"%d." % int(path) * (1 + int(path) % 7 * 997)
    start_response(STATUS, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]

STATUS = "200 OK"
"""


def write(directory, version, more=""):
    (directory / "app.new").write_text(f"{APP}\nVERSION = {version!r}\n{more}\n")
    (directory / "app.new").rename(directory / "app.py")


@pytest.fixture
def operated(tmp_path):
    """A server that must end well, if the test does not end it."""
    write(tmp_path, "one")

    @contextmanager
    def start(*arguments):
        with Operated(tmp_path, "app:app", "--preload", "--workers", "2", *arguments) as server:
            yield server
            if server.process.poll() is None:
                assert server.stop() == 0

    return start


def reload(server, version, more=""):
    """Tells it to load other code."""
    write(server.directory, version, more)
    server.tell(signal.SIGHUP)


def who(server):
    version, mold, worker, parent, frozen = server.get("/who").body.decode().split()
    return version, int(mold), int(worker), int(parent), frozen == "True"


def molds(server):
    return [int(pid) for pid in re.findall(r"mold \(pid (\d+)\) has loaded the application", server.log)]


def workers(server, count):
    """The workers that have told they are ready, once there are so many."""
    server.logged("ready in", count)
    return [int(pid) for pid in re.findall(r"worker \d+ \(pid (\d+)\) ready in", server.log)]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def zombies(server):
    """Processes of its session that have ended and that nobody has reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == server.process.pid and fields[0] == "Z":
            found.append(int(path.parent.name))
    return found


def test_workers_are_forked_from_the_mold_and_the_master_has_no_code_of_the_application(operated):
    with operated() as server:
        pids = workers(server, 2)
        version, mold, worker, parent, frozen = who(server)
        assert (version, parent, mold) == ("one", mold, molds(server)[0])
        assert worker in pids
        assert frozen, "what the application has loaded is not visited by the garbage collector"
        assert "sqlite" in Path(f"/proc/{worker}/maps").read_text()
        assert "sqlite" not in Path(f"/proc/{server.master}/maps").read_text()


def test_a_reload_makes_another_mold_and_loses_nothing(operated):
    with operated() as server, Checking(server.serves().address) as clients:
        master = server.master
        for turn in range(1, 6):
            clients.go_on()
            reload(server, f"version-{turn}")
            server.replaced(turn)
            clients.go_on()
            assert who(server)[0] == f"version-{turn}"
        assert server.master == master
        # Only the last mold is left, and nobody is a zombie.
        server.until(lambda: [pid for pid in molds(server) if is_alive(pid)] == molds(server)[-1:], "one mold")
        eventually(lambda: not zombies(server), "no zombies")
        assert len(set(molds(server))) == 6


def test_code_that_does_not_load_leaves_the_old_mold_and_its_workers(operated):
    with operated() as server, Checking(server.serves().address) as clients:
        first = molds(server)
        reload(server, "two", "raise RuntimeError('no such table')")
        server.logged("reload failed, the old workers keep serving: mold (pid ")
        assert "failed to load: importing app failed: RuntimeError: no such table" in server.log
        assert "raise RuntimeError('no such table')" in server.log
        clients.go_on()
        # The old mold forks on.
        os.kill(workers(server, 2)[0], signal.SIGKILL)
        workers(server, 3)
        assert {who(server)[0] for _ in range(6)} == {"one"}
        assert molds(server) == first
        reload(server, "three")
        server.logged("reload complete")
        clients.faults.clear()  # a request of the worker that was killed may have failed
        server.until(lambda: who(server)[0] == "three", "the new code")


def test_a_reload_during_a_reload_ends_the_mold_that_hangs(operated, tmp_path):
    with operated() as server:
        workers(server, 2)
        os.mkfifo(tmp_path / "gate")
        reload(server, "two", "open('loads', 'w').close(); open('gate').read()")
        server.logged("SIGHUP: loading the application")
        server.until((tmp_path / "loads").exists, "the mold that hangs")
        reload(server, "three")
        server.logged("SIGHUP: loading the application once more")
        server.logged("reload complete")
        # The last old worker has been told to drain, and may not have read that yet.
        server.until(lambda: who(server)[0] == "three", "the new code")
        server.until(lambda: len(server.processes()) == 4, "master, mold and two workers")
        assert "reload failed" not in server.log


def test_a_mold_that_is_killed_is_replaced_and_its_workers_serve_on(operated):
    with operated() as server, Checking(server.serves().address) as clients:
        first, second = workers(server, 2)
        os.kill(molds(server)[0], signal.SIGKILL)
        server.logged("was killed by SIGKILL; making another one in 1 s")
        server.until(lambda: len(molds(server)) == 2, "another mold")
        clients.go_on()
        assert is_alive(first) and is_alive(second)
        server.tell(signal.SIGHUP)
        server.logged("reload complete")
        clients.go_on()
        # Also the workers of the mold that was killed have ended, and that is known.
        server.logged(f"(pid {first}) has ended")
        server.logged(f"(pid {second}) has ended")
        assert who(server)[3] == molds(server)[-1]


def test_an_orphan_that_is_killed_is_replaced_by_the_next_mold(operated):
    with operated() as server:
        first, _ = workers(server, 2)
        os.kill(molds(server)[0], signal.SIGKILL)
        server.until(lambda: len(molds(server)) == 2, "another mold")
        os.kill(first, signal.SIGKILL)
        third = workers(server, 3)[2]
        assert f"(pid {first}) ended with an unknown status" in server.log
        server.until(lambda: who(server)[2] == third, "an answer of its successor")


def test_a_mold_that_hangs_keeps_nobody_from_ending(operated):
    with operated("--graceful-timeout", "0.5") as server:
        workers(server, 2)
        os.kill(molds(server)[0], signal.SIGSTOP)
        reload(server, "two")
        server.replaced()
        assert who(server)[0] == "two"
        server.logged(f"mold (pid {molds(server)[0]}) hangs and is killed")
        server.until(lambda: len(server.processes()) == 4, "master, mold and two workers")


# While the file `slow` exists, the mold takes its time between a fork and what follows it.
SLOW_FORK = """
import multiprocessing, time
def slow():
    while os.path.exists("slow"):
        time.sleep(0.01)
os.register_at_fork(after_in_parent=slow)
"""


def test_a_worker_whose_mold_dies_while_it_forks_is_known_to_the_master(operated, tmp_path):
    write(tmp_path, "one", SLOW_FORK)
    with operated() as server:
        workers(server, 2)
        (tmp_path / "slow").touch()
        server.tell(signal.SIGTTIN)
        server.until(lambda: len(server.processes()) == 5, "the third worker")
        os.kill(molds(server)[0], signal.SIGKILL)
        (tmp_path / "slow").unlink()
        server.until(lambda: len(molds(server)) == 2, "another mold")
        server.until(lambda: len(server.processes()) == 5, "master, mold and three workers")
        reload(server, "two")
        server.replaced()
        server.until(lambda: len(server.processes()) == 5, "master, mold and three workers of the new code")
        known = set(re.findall(r"pid (\d+)", server.log))
        assert {str(pid) for pid in server.processes()} <= {*known, str(server.master)}
        assert {who(server)[0] for _ in range(20)} == {"two"}


def test_a_process_that_hangs_before_it_is_a_worker_is_ended(operated, tmp_path):
    write(
        tmp_path,
        "one",
        "import time\nos.register_at_fork(after_in_child=lambda: os.path.exists('hang') and time.sleep(99))",
    )
    with operated("--graceful-timeout", "1") as server:
        workers(server, 2)
        (tmp_path / "hang").touch()
        server.tell(signal.SIGTTIN)
        server.until(lambda: len(server.processes()) == 5, "the third process")
        assert server.log.count("ready in") == 2
        server.tell(signal.SIGTERM)
        server.process.wait(30)
        assert server.process.returncode == 0
        server.until(lambda: not server.processes(), "the end of all")


def test_a_reload_before_the_first_worker_is_ready_loads_the_new_code(operated, tmp_path):
    write(tmp_path, "one")
    (tmp_path / "hooks.py").write_text(
        "import os, time\ndef post_fork(worker):\n    while not os.path.exists('go'):\n        time.sleep(0.01)\n"
    )
    with operated("--hooks", "hooks") as server:
        server.until(lambda: len(server.processes()) == 4, "master, mold and two workers that load")
        reload(server, "two")
        server.until(lambda: len(molds(server)) == 2, "the other mold")
        (tmp_path / "go").touch()
        server.logged("reload complete")
        server.until(lambda: {who(server)[0] for _ in range(10)} == {"two"}, "the new code alone")


def test_a_reload_that_fails_does_not_end_the_one_that_follows(operated, tmp_path):
    (tmp_path / "hooks.py").write_text(
        "import os, sys, time\n"
        "def post_fork(worker):\n"
        "    if sys.modules['app'].VERSION == 'two':\n"
        "        while not os.path.exists('fail'):\n"
        "            time.sleep(0.01)\n"
        "        os._exit(1)\n"
    )
    with operated("--hooks", "hooks") as server:
        workers(server, 2)
        reload(server, "two")
        server.until(lambda: len(server.processes()) == 6, "a worker of the second code, which does not start")
        reload(server, "three", "import time\nwhile not os.path.exists('load'):\n    time.sleep(0.01)")
        server.until(lambda: len(server.processes()) == 7, "the mold of the third code")
        (tmp_path / "fail").touch()
        server.logged("reload failed, the old workers keep serving")
        assert who(server)[0] == "one"
        (tmp_path / "load").touch()
        server.logged("reload complete")
        server.until(lambda: {who(server)[0] for _ in range(20)} == {"three"}, "the third code alone")


def kill_molds(server, times):
    """Kills molds at random moments during reloads; afterwards, only processes known to the master are left."""
    chance = random.Random(times)
    for turn in range(times):
        loaded = server.log.count("has loaded the application")
        if turn % 2:
            reload(server, f"version-{turn}")
        else:
            found = [pid for pid in server.processes() if pid != server.master]
            os.kill(chance.choice(found), signal.SIGKILL)
        time.sleep(chance.random() * 0.1)
        for pid in children(server.master):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_text().startswith("tailrace: mold"):
                    os.kill(pid, signal.SIGKILL)
        server.until(lambda: server.log.count("has loaded the application") > loaded, "another mold")  # noqa: B023
    reload(server, "last")
    server.until(lambda: {who(server)[0] for _ in range(20)} == {"last"}, "the last code alone")
    server.until(lambda: len(server.processes()) == 4, "master, mold and two workers")
    server.until(lambda: not zombies(server), "no zombies")
    assert {who(server)[0] for _ in range(20)} == {"last"}


@pytest.mark.nightly(gate=1)
@pytest.mark.parametrize("times", [6, 100])
def test_molds_that_are_killed_at_any_moment_leave_no_worker_of_old_code(operated, times):
    with operated("--graceful-timeout", "2") as server:
        workers(server, 2)
        kill_molds(server, times)


def test_the_master_heeds_signals_while_a_mold_that_hangs_is_to_fork(operated):
    with operated() as server:
        workers(server, 2)
        (mold,) = molds(server)
        os.kill(mold, signal.SIGSTOP)
        server.tell(signal.SIGTTIN)
        server.logged("SIGTTIN: 3 workers")
        server.tell(signal.SIGTTOU)
        server.logged("SIGTTOU: 2 workers")
        assert "hangs" not in server.log
        assert who(server)[0] == "one"
        os.kill(mold, signal.SIGCONT)
        # The process that it has forked is no longer needed, and has not started.
        server.until(lambda: len(server.processes()) == 4, "master, mold and two workers")
        assert server.log.count("ready in") == 2


def test_a_mold_that_does_not_report_the_end_of_the_only_worker_is_replaced(operated):
    with operated("--workers", "1") as server:
        (worker,) = workers(server, 1)
        os.kill(molds(server)[0], signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        server.logged(f"mold (pid {molds(server)[0]}) hangs and is killed")
        assert who(server)[2] == workers(server, 2)[1]


def test_a_stop_does_not_wait_for_a_mold_that_hangs(operated):
    with operated("--graceful-timeout", "300") as server:
        workers(server, 2)
        os.kill(molds(server)[0], signal.SIGSTOP)
        assert server.stop() == 0
        assert "did not end in time" not in server.log


def no_more_descriptors(pid):
    """Lets this process open none; the limits that it had."""
    lowest = min(set(range(4096)) - {int(name) for name in os.listdir(f"/proc/{pid}/fd")})
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
    return before


def test_a_master_without_any_free_descriptor_takes_nobody_for_dead(operated):
    with operated() as server:
        first = workers(server, 2)
        before = no_more_descriptors(server.master)
        # Longer than a mold may take to report an exited worker.
        time.sleep(4)
        resource.prlimit(server.master, resource.RLIMIT_NOFILE, before)
        assert "hangs" not in server.log
        assert "has ended" not in server.log and "unknown status" not in server.log
        assert all(map(is_alive, [*first, *molds(server)]))
        reload(server, "two")
        server.replaced()
        assert {who(server)[0] for _ in range(20)} == {"two"}
        server.until(lambda: len(server.processes()) == 4, "master, mold and two workers")


def test_a_master_without_free_descriptors_forks_workers_and_molds_when_there_are_some(operated):
    with operated() as server:
        workers(server, 2)
        before = no_more_descriptors(server.master)
        server.tell(signal.SIGTTIN)
        server.logged("cannot fork worker 3: Too many open files; raise the limit of open files")
        resource.prlimit(server.master, resource.RLIMIT_NOFILE, before)
        workers(server, 3)
        before = no_more_descriptors(server.master)
        reload(server, "two")
        server.logged("cannot fork a mold: Too many open files; raise the limit of open files")
        resource.prlimit(server.master, resource.RLIMIT_NOFILE, before)
        server.replaced()
        assert {who(server)[0] for _ in range(20)} == {"two"}


def test_a_mold_that_forks_slowly_forks_all(operated, tmp_path):
    write(tmp_path, "one", "import time\nos.register_at_fork(before=lambda: time.sleep(0.2))")
    with operated("--workers", "40") as server:
        server.until(lambda: server.log.count("ready in") == 40, "all workers")
        assert "hangs" not in server.log and "cannot fork" not in server.log
        for count in range(41, 46):
            server.tell(signal.SIGTTIN)
            server.logged(f"SIGTTIN: {count} workers")
        for count in range(44, 39, -1):
            server.tell(signal.SIGTTOU)
            server.logged(f"SIGTTOU: {count} workers")
        server.until(lambda: len(server.processes()) == 42, "master, mold and 40 workers")
        assert "hangs" not in server.log


def test_a_mold_without_free_descriptors_forks_when_there_are_some(operated):
    with operated() as server:
        workers(server, 2)
        (mold,) = molds(server)
        before = no_more_descriptors(mold)
        server.tell(signal.SIGTTIN)
        server.logged("the mold has no free file descriptors and cannot fork a worker")
        server.logged("cannot fork worker 3: ")
        resource.prlimit(mold, resource.RLIMIT_NOFILE, before)
        workers(server, 3)


BEGAN = """
import multiprocessing, tempfile, time
KEPT = tempfile.TemporaryDirectory(dir=".", prefix="kept")
HELPER = multiprocessing.Process(target=time.sleep, args=(300,), daemon=True)
HELPER.start()
open("helper", "w").write(str(HELPER.pid))
"""


def test_processes_and_temporary_directories_that_the_application_began_in_the_mold_survive_the_workers(
    operated, tmp_path
):
    write(tmp_path, "one", BEGAN)
    with operated() as server:
        first, _ = workers(server, 2)
        helper = int((tmp_path / "helper").read_text())
        os.kill(first, signal.SIGTERM)
        workers(server, 3)
        server.until(lambda: not is_alive(first), "its end")
        assert is_alive(helper)
        assert list(tmp_path.glob("kept*"))
        server.stop()
        assert not is_alive(helper)
        assert not list(tmp_path.glob("kept*"))
        assert "Error" not in server.log


def test_a_mold_that_cannot_load_any_more_is_tried_again_while_the_workers_serve(operated, tmp_path):
    with operated() as server:
        first, second = workers(server, 2)
        write(tmp_path, "two", "raise RuntimeError('no such table')")
        os.kill(molds(server)[0], signal.SIGKILL)
        server.logged("RuntimeError: no such table; making another one in 2 s")
        os.kill(first, signal.SIGKILL)
        server.logged(f"(pid {first}) ended with an unknown status, since its mold had ended before")
        assert who(server)[:1] + who(server)[2:3] == ("one", second)
        write(tmp_path, "three")
        assert len(workers(server, 3)) == 3


def test_a_stop_notices_the_end_of_orphans(operated, tmp_path):
    with operated() as server:
        workers(server, 2)
        write(tmp_path, "two", "raise RuntimeError('no such table')")
        os.kill(molds(server)[0], signal.SIGKILL)
        # There is no mold any more.
        server.logged("RuntimeError: no such table; making another one in 2 s")


def test_without_the_master_all_end(operated):
    with operated() as server:
        workers(server, 2)
        os.kill(server.master, signal.SIGKILL)
        server.until(lambda: not server.processes(), "the end of all processes")


def test_a_stop_of_all_processes_at_once_is_clean(operated):
    with operated() as server:
        workers(server, 2)
        # As a service manager does.
        os.killpg(server.process.pid, signal.SIGTERM)
        assert server.process.wait(20) == 0
        server.until(lambda: not server.processes(), "the end of all processes")
        assert "ERROR" not in server.log


def test_a_reload_that_is_undone_after_its_trial_goes_back_to_the_old_mold(operated):
    with operated("--reload-trial", "300") as server:
        first, _ = workers(server, 2)
        reload(server, "two", "STATUS = '500 Internal Server Error'")
        server.logged("is on trial for")
        server.until(lambda: server.get("/1") and "reload undone" in server.log, "the end of the trial")
        server.until(lambda: [pid for pid in molds(server) if is_alive(pid)] == molds(server)[:1], "the first mold")
        # The new code is still on the disk, but the old mold forks.
        os.kill(first, signal.SIGKILL)
        workers(server, 4)
        assert {who(server)[0] for _ in range(8)} == {"one"}


def test_a_trial_that_is_rejected_after_the_end_of_the_old_mold_is_named(operated):
    with operated("--reload-trial", "300") as server:
        workers(server, 2)
        reload(server, "two", "STATUS = '500 Internal Server Error'")
        server.logged("is on trial for")
        os.kill(molds(server)[0], signal.SIGKILL)
        server.until(lambda: server.get("/1") and "reload undone" in server.log, "the end of the trial")
        server.logged("restore the old code: until the next reload, no worker is recycled")
        server.stop()


def test_the_mold_reopens_the_log_for_the_workers_that_it_forks(operated, tmp_path):
    log = tmp_path / "own.log"
    with operated("--log", str(log)) as server:
        eventually(lambda: log.exists() and log.read_text().count("ready in") == 2, "two workers")
        log.rename(tmp_path / "own.log.1")
        server.tell(signal.SIGUSR1)
        eventually(lambda: log.exists() and "log reopened" in log.read_text(), "the new file")
        server.tell(signal.SIGTTIN)
        eventually(lambda: "ready in" in log.read_text(), "a third worker")
        third = re.search(r"worker 3 \(pid (\d+)\) ready in", log.read_text())[1]

        def has_logged():
            server.get("/log")
            return f"logged by {third}" in log.read_text()

        eventually(has_logged, "a line of the third worker in the new file")
        assert "logged by" not in (tmp_path / "own.log.1").read_text()


def test_connections_that_workers_would_share_are_named(operated, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as database:
        port = database.getsockname()[1]
        opens = f"import socket\nPAIR = socket.socketpair()\nDATABASE = socket.create_connection(('127.0.0.1', {port}))"
        write(tmp_path, "one", opens)
        with operated() as server:
            server.logged(f"--preload: the application has opened connections (to 127.0.0.1:{port}), which all workers")
            server.stop()
    write(tmp_path, "two", "import socket\nPAIR = socket.socketpair()")
    with operated() as server:
        workers(server, 2)
        assert "opened connections" not in server.log


CHANNELS = """
import grpc
CHANNEL = grpc.insecure_channel("127.0.0.1:9555")
CLOSED = grpc.insecure_channel("127.0.0.1:9556")
CLOSED.close()
"""


def test_grpc_channels_on_which_workers_could_not_call_are_named(operated, tmp_path):
    pytest.importorskip("grpc")
    write(tmp_path, "one", CHANNELS)
    with operated() as server:
        workers(server, 2)
        assert "the application has opened gRPC channels (to 127.0.0.1:9555), on which calls may fail" in server.log
        # A channel that is opened in each worker is not the mold's.
        write(
            tmp_path, "two", CHANNELS.replace("CHANNEL =", "def post_fork(worker):\n    global CHANNEL\n    CHANNEL =")
        )
        server.tell(signal.SIGHUP)
        server.replaced()
        assert server.log.count("gRPC channels") == 1


def test_what_was_opened_before_the_mold_is_not_the_applications(operated, tmp_path):
    """An agent that starts with Python opens it in the master, and starts its threads again in each fork."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, threading, time\n"
        "def start():\n    threading.Thread(target=time.sleep, args=(600,), name='agent', daemon=True).start()\n"
        "start()\nos.register_at_fork(after_in_child=start)\n"
    )
    write(
        tmp_path,
        "one",
        "import threading\nNAMES = [each.name for each in threading.enumerate()]\nassert 'agent' in NAMES",
    )
    with Operated(
        tmp_path, "app:app", "--preload", "--workers", "2", environment={"PYTHONPATH": str(tmp_path)}
    ) as server:
        workers(server, 2)
        assert "has started threads" not in server.log
        server.stop()


def pss(pids):
    """Proportional memory in bytes: a page that n processes share counts 1/n in each."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[1]) << 10 for text in texts)


def test_workers_share_the_memory_of_what_was_loaded(tmp_path):
    write(tmp_path, "one", "OBJECTS = [str(number) for number in range(500_000)]")
    memory = {}
    for way in ([], ["--preload"]):
        with Operated(tmp_path, "app:app", "--workers", "4", *way) as server:
            workers(server, 4)
            for _ in range(40):
                assert who(server)[0] == "one"
            memory[bool(way)] = pss(server.processes())
            server.stop()
    assert memory[True] < memory[False] / 2, memory


GATED = """
import time

plain = app

def app(environ, start_response):
    if environ["PATH_INFO"] != "/gate":
        return plain(environ, start_response)
    while not os.path.exists("go"):
        time.sleep(0.005)
    start_response(STATUS, [("Content-Type", "text/plain"), ("Content-Length", "7")])
    return [b"through"]
"""


def test_nobody_can_connect_while_the_last_requests_are_finished(operated, tmp_path):
    write(tmp_path, "one", GATED)
    with operated() as server:
        workers(server, 2)
        with Client(server.address) as waiting:
            waiting.send(b"GET /gate HTTP/1.1\r\nHost: test\r\n\r\n")
            for _ in range(4):
                server.get("/1")
            server.tell(signal.SIGTERM)
            server.logged("finishing the requests in flight")
            server.until(lambda: not reachable(server.address), "clients to be refused")
            (tmp_path / "go").touch()
            assert waiting.response().body == b"through"
        assert server.process.wait(20) == 0
