"""`--preload`: the mold, which loads the application and forks the workers, and the master, which has no code of it."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest
from harness.operated import Checking, Operated
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
    write(tmp_path, "one")
    return lambda *arguments: Operated(tmp_path, "app:app", "--preload", "--workers", "2", *arguments)


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
        server.stop()
        assert server.process.returncode == 0


def test_a_reload_makes_another_mold_and_loses_nothing(operated, tmp_path):
    with operated() as server, Checking(server.serves().address) as clients:
        master = server.master
        for turn in range(1, 6):
            clients.go_on()
            write(tmp_path, f"version-{turn}")
            server.tell(signal.SIGHUP)
            server.logged("reload complete", turn)
            clients.go_on()
            assert who(server)[0] == f"version-{turn}"
        assert server.master == master
        # Only the last mold is left, and nobody is a zombie.
        server.until(lambda: [pid for pid in molds(server) if is_alive(pid)] == molds(server)[-1:], "one mold")
        eventually(lambda: not zombies(server), "no zombies")
        assert len(set(molds(server))) == 6


def test_code_that_does_not_load_leaves_the_old_mold_and_its_workers(operated, tmp_path):
    with operated() as server, Checking(server.serves().address) as clients:
        first = molds(server)
        write(tmp_path, "two", "raise RuntimeError('no such table')")
        server.tell(signal.SIGHUP)
        server.logged("reload failed, the old workers keep serving: importing app failed: RuntimeError: no such table")
        assert "raise RuntimeError('no such table')" in server.log
        clients.go_on()
        # The old mold forks on.
        os.kill(workers(server, 2)[0], signal.SIGKILL)
        workers(server, 3)
        assert {who(server)[0] for _ in range(6)} == {"one"}
        assert molds(server) == first
        write(tmp_path, "three")
        server.tell(signal.SIGHUP)
        server.logged("reload complete")
        clients.faults.clear()  # a request of the worker that was killed may have failed
        server.until(lambda: who(server)[0] == "three", "the new code")


def test_a_reload_during_a_reload_ends_the_mold_that_hangs(operated, tmp_path):
    with operated() as server:
        workers(server, 2)
        os.mkfifo(tmp_path / "gate")
        write(tmp_path, "two", "open('loads', 'w').close(); open('gate').read()")
        server.tell(signal.SIGHUP)
        server.logged("SIGHUP: loading the application")
        server.until((tmp_path / "loads").exists, "the mold that hangs")
        write(tmp_path, "three")
        server.tell(signal.SIGHUP)
        server.logged("SIGHUP: loading the application once more")
        server.logged("reload complete")
        # The last old worker has been told to drain, and may not have read that yet.
        server.until(lambda: who(server)[0] == "three", "the new code")
        server.until(lambda: len(server.processes()) == 4, "master, mold and two workers")
        assert "reload failed" not in server.log


def test_a_mold_that_is_killed_is_replaced_and_its_workers_serve_on(operated, tmp_path):
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
        server.stop()
        assert server.process.returncode == 0


def test_a_mold_that_hangs_keeps_nobody_from_ending(operated, tmp_path):
    with operated("--graceful-timeout", "0.5") as server:
        workers(server, 2)
        os.kill(molds(server)[0], signal.SIGSTOP)
        write(tmp_path, "two")
        server.tell(signal.SIGHUP)
        server.logged("reload complete")
        assert who(server)[0] == "two"
        server.logged(f"mold (pid {molds(server)[0]}) hangs and is killed")
        server.until(lambda: len(server.processes()) == 4, "master, mold and two workers")
        server.stop()
        assert server.process.returncode == 0


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
        server.stop()
        assert server.process.returncode == 0


def test_a_stop_notices_the_end_of_orphans(operated, tmp_path):
    with operated() as server:
        workers(server, 2)
        write(tmp_path, "two", "raise RuntimeError('no such table')")
        os.kill(molds(server)[0], signal.SIGKILL)
        # There is no mold any more.
        server.logged("RuntimeError: no such table; making another one in 2 s")
        server.stop()
        assert server.process.returncode == 0


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


def test_a_reload_that_is_undone_after_its_trial_goes_back_to_the_old_mold(operated, tmp_path):
    with operated("--reload-trial", "300") as server:
        first, _ = workers(server, 2)
        write(tmp_path, "two", "STATUS = '500 Internal Server Error'")
        server.tell(signal.SIGHUP)
        server.logged("is on trial for")

        def is_undone():
            server.get("/1")
            return "reload undone" in server.log

        server.until(is_undone, "the end of the trial")
        server.until(lambda: [pid for pid in molds(server) if is_alive(pid)] == molds(server)[:1], "the first mold")
        # The new code is still on the disk, but the old mold forks.
        os.kill(first, signal.SIGKILL)
        workers(server, 4)
        assert {who(server)[0] for _ in range(8)} == {"one"}


def test_a_trial_that_is_rejected_after_the_end_of_the_old_mold_is_named(operated, tmp_path):
    with operated("--reload-trial", "300") as server:
        workers(server, 2)
        write(tmp_path, "two", "STATUS = '500 Internal Server Error'")
        server.tell(signal.SIGHUP)
        server.logged("is on trial for")
        os.kill(molds(server)[0], signal.SIGKILL)

        def is_undone():
            server.get("/1")
            return "reload undone" in server.log

        server.until(is_undone, "the end of the trial")
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


def served(server, count):
    for _ in range(count):
        server.get("/1")


def test_a_worker_becomes_the_mold_and_nothing_is_lost(operated, tmp_path):
    with operated("--refork", "20", "--refork", "200") as server:
        with Checking(server.serves().address) as clients:
            first = molds(server)[0]
            for turn in (1, 2):
                server.logged("forks the workers from now on", turn)
                made = [int(pid) for pid in re.findall(r"mold \(pid (\d+)\) forks the workers", server.log)]
                version, loaded, *_ = who(server)
                server.until(lambda made=made: who(server)[3] == made[-1], "a worker of the new mold")
                assert (version, loaded) == ("one", first), "the code is not loaded again"
            clients.go_on()
            assert made[0] != made[1]
            server.until(lambda: not is_alive(first) and not is_alive(made[0]), "the molds before to end")
        # Its workers are as good as others, and a reload makes another mold.
        os.kill(who(server)[2], signal.SIGKILL)
        server.logged("replacing it")
        with Checking(server.address) as clients:
            write(tmp_path, "two")
            server.tell(signal.SIGHUP)
            server.logged("reload complete")
            server.until(lambda: who(server)[0] == "two", "the new code")
            clients.go_on()
        server.until(lambda: not is_alive(made[1]), "the mold that was a worker to end")
        server.stop()
        assert server.process.returncode == 0


def test_a_worker_with_threads_of_its_own_does_not_become_the_mold(operated, tmp_path):
    write(tmp_path, "one", THREADED)
    with operated("--refork", "20") as server:
        workers(server, 2)
        served(server, 60)
        server.logged("cannot become the mold (--refork), because threads are left in it: ")
        # It has ended, and its successor serves.
        server.logged("has ended")
        workers(server, 3)
        assert who(server)[3] == molds(server)[0]
        assert "forks the workers from now on" not in server.log


THREADED = """
import threading

plain = app
started = []

def app(environ, start_response):
    if not started:
        started.append(threading.Thread(target=threading.Event().wait, daemon=True))
        started[0].start()
    return plain(environ, start_response)
"""


def test_threads_of_the_server_end_before_a_worker_becomes_the_mold(operated, tmp_path):
    write(tmp_path, "one", SLOW)
    with operated("--refork", "20", "--slow", "0.02") as server:
        workers(server, 2)
        served(server, 60)
        server.logged("forks the workers from now on")
        # Two threads of the server have reported this.
        assert "slow:" in server.log
        server.stop()
        assert server.process.returncode == 0


SLOW = """
import time

plain = app
slept = []

def app(environ, start_response):
    if not slept:
        slept.append(time.sleep(0.2))
    return plain(environ, start_response)
"""


def test_connections_that_a_worker_has_left_open_are_named(operated, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as database:
        port = database.getsockname()[1]
        write(tmp_path, "one", CONNECTED.format(port=port))
        with operated("--refork", "20") as server:
            workers(server, 2)
            served(server, 60)
            server.logged("forks the workers from now on")
            assert f"--refork: the application has opened connections (to 127.0.0.1:{port}), which all" in server.log
            assert "--preload: the application has opened" not in server.log
            server.stop()
            assert server.process.returncode == 0


CONNECTED = """
import functools
import socket

plain = app
database = functools.cache(lambda: socket.create_connection(("127.0.0.1", {port})))

def app(environ, start_response):
    database()
    return plain(environ, start_response)
"""


def test_a_mold_that_was_a_worker_is_replaced_when_it_is_killed(operated):
    with operated("--refork", "20") as server, Checking(server.serves().address) as clients:
        server.logged("forks the workers from now on")
        made = int(re.findall(r"mold \(pid (\d+)\) forks the workers", server.log)[0])
        server.until(lambda: who(server)[3] == made, "a worker of the new mold")
        os.kill(made, signal.SIGKILL)
        server.logged(f"mold (pid {made}) ended")
        server.logged("has loaded the application", 2)
        clients.go_on()
        server.stop()
        assert server.process.returncode == 0


def test_a_reload_while_a_worker_becomes_the_mold_wins(operated, tmp_path):
    write(tmp_path, "one", GATED)
    with operated("--refork", "20", "--workers", "1", "--threads", "4") as server:
        workers(server, 1)
        with Client(server.address) as waiting:
            waiting.send(b"GET /gate HTTP/1.1\r\nHost: test\r\n\r\n")
            served(server, 60)
            server.logged("becomes the mold")
            server.logged("drains")
            write(tmp_path, "two", GATED)
            server.tell(signal.SIGHUP)
            server.logged("reload complete")
            (tmp_path / "go").touch()
            assert waiting.response().body == b"through"
        server.until(lambda: {who(server)[0] for _ in range(6)} == {"two"}, "the new code alone")
        assert "forks the workers from now on" not in server.log
        server.stop()
        assert server.process.returncode == 0


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
            served(server, 4)
            server.tell(signal.SIGTERM)
            server.logged("finishing the requests in flight")

            def is_refused():
                try:
                    server.address.connect(5).close()
                except ConnectionRefusedError:
                    return True
                return False

            server.until(is_refused, "clients to be refused")
            (tmp_path / "go").touch()
            assert waiting.response().body == b"through"
        assert server.process.wait(20) == 0
