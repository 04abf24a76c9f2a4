"""Master and workers: reloads, replacements, crashes, stops. No request is lost."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.operated import Operated
from harness.programs import tailrace
from harness.server import APPS, Server, children
from harness.status import reachable
from harness.wire import Client
from server.probes import asking, await_ready, eventually, in_flight, is_stopped, ready, request, told, waiting

from tailrace.system import cgroup

APP = "srv_processes:app"


@pytest.fixture
def state(tmp_path):
    """Steers the application; see srv_processes.py."""
    directory = tmp_path / "state"
    directory.mkdir()
    return directory


def start(state, *arguments, **options):
    return Server(APP, *arguments, environment={"STATE": str(state)}, **options)


def notes(state):
    path = state / "notes"
    return [tuple(line.rsplit(" ", 1)) for line in path.read_text().splitlines()] if path.exists() else []


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


def start_that_fails(state, *arguments):
    """What a start that fails says on standard error."""
    environment = {**os.environ, "STATE": str(state)}
    ended = tailrace(APP, "--bind", "127.0.0.1:0", *arguments, cwd=APPS, env=environment)
    assert ended.returncode == 3
    return ended.stderr


def spread(stack, server, workers):
    """A connection to each of the workers, by process number. The kernel says who accepts, so the others are stopped
    meanwhile; each that it wakes in vain is not woken again, hence several connections."""
    found = {}
    for pid in workers:
        others = [other for other in workers if other != pid]
        for other in others:
            os.kill(other, signal.SIGSTOP)
        try:
            eventually(lambda: all(map(is_stopped, others)), "the others stopped")  # noqa: B023
            clients = [stack.enter_context(server.client(30)) for _ in range(2 * len(workers))]
            for client in clients:
                assert json.loads(client.ask(request("/")).body)["pid"] == pid
        finally:
            for other in others:
                os.kill(other, signal.SIGCONT)
        found[pid], *rest = clients
        for client in rest:
            client.close()
    return found


# Workers


def test_several_workers_serve_and_all_end_with_the_master():
    with Server(APP, workers=3) as server, ExitStack() as stack:
        workers = await_ready(server, 3)
        spread(stack, server, workers)
        assert told(server, "/") | {"pid": 0} == {"pid": 0, "parent": server.process.pid, "multiprocess": True}
        assert server.stop() == 0
        assert all(map(is_gone, workers))


def test_as_many_workers_as_cpus():
    with Server(APP, workers="auto") as server:
        count = cgroup.machine().cpus
        assert len(await_ready(server, count)) == count


def test_sigttin_adds_a_worker_and_sigttou_ends_one():
    with Server(APP) as server:
        first = await_ready(server, 1)
        server.send_signal(signal.SIGTTIN)
        second = await_ready(server, 2)[1:]
        assert children(server.process.pid) == first + second
        server.send_signal(signal.SIGTTOU)
        eventually(lambda: children(server.process.pid) == first, "the second has ended")
        server.send_signal(signal.SIGTTOU)
        assert server.logged("SIGTTOU: 1 worker, which is the minimum")
        assert told(server, "/")["pid"] == first[0]


def test_a_worker_ignores_signals_that_are_for_the_master(tmp_path):
    with Server(APP) as server, waiting(server, tmp_path) as client:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
            os.kill(server.pid, number)
        (tmp_path / "gate").touch()
        assert client.response().body == b"waited"
        assert len(await_ready(server, 1)) == 1


def test_a_stop_that_reaches_every_process_at_once_is_as_graceful(tmp_path):
    """As systemd does, unless it is told otherwise."""
    with Server(APP, workers=2) as server:
        workers = await_ready(server, 2)
        with waiting(server, tmp_path) as client:
            for pid in (*workers, server.process.pid, *workers):
                os.kill(pid, signal.SIGTERM)
            eventually(lambda: len(children(server.process.pid)) == 1, "the idle worker has ended")
            (tmp_path / "gate").touch()
            assert client.response().body == b"waited"
            assert server.wait() == 0
    assert "stopping now" not in server.log


def test_the_end_of_a_worker_is_a_proper_end_of_the_interpreter(state):
    with start(state) as server:
        (worker,) = await_ready(server, 1)
        assert server.stop() == 0
    assert notes(state) == [(said, str(worker)) for said in ("loading", "work done", "at the end")]


def test_threads_of_the_application_that_take_their_time_are_named(state):
    (state / "lingers").touch()
    with start(state) as server:
        (worker,) = await_ready(server, 1)
        server.send_signal(signal.SIGTERM)
        assert server.logged("waiting for threads of the application: the work")
        assert not is_gone(worker)
        (state / "lingers").unlink()
        assert server.wait() == 0
    assert ("work done", str(worker)) in notes(state)


# The end of the master


def test_without_their_master_workers_finish_what_they_have_begun_and_end(tmp_path):
    with Server(APP, workers=2) as server:
        workers = await_ready(server, 2)
        with waiting(server, tmp_path) as client:
            server.process.kill()
            server.process.wait()
            eventually(lambda: sum(map(is_gone, workers)) == 1, "the idle worker has ended")
            (tmp_path / "gate").touch()
            answer = client.response()
            assert (answer.body, answer.connection) == (b"waited", {"close"})
        eventually(lambda: all(map(is_gone, workers)), "no worker is left")
        assert "the master has ended" in server.log


def test_a_worker_that_still_loads_when_its_master_dies_does_not_stay(state):
    (state / "slow").touch()
    with start(state) as server:
        worker = server.pid
        eventually(lambda: notes(state), "it loads")
        server.process.kill()
        server.process.wait()
        eventually(lambda: is_gone(worker), "no worker is left")


@pytest.mark.nightly(gate=1)
@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--debug", "--reload")], ids=["threads", "gevent", "debug"])
def test_a_worker_that_holds_its_interpreter_leaves_the_address_when_its_master_dies_and_ends(tmp_path, arguments):
    entered = tmp_path / "entered"
    with Server(APP, *arguments, graceful_timeout=0.2) as server, in_flight(server, "/stuck?keeps=1", entered):
        workers = server.workers()
        server.process.kill()
        server.process.wait()
        eventually(lambda: not reachable(server.address), "the address is free")
        with Server(APP, address=server.address) as successor:
            assert told(successor, "/")["parent"] == successor.process.pid
        eventually(lambda: all(map(is_gone, workers)), "no worker is left")
        forced = r"process \d+, whose master has ended, did not end in time and is ended by force\n"
        assert re.search(forced, server.log)
        assert re.search(r"process \d+ was running the request GET /stuck\?keeps=1", server.log)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGQUIT, 0)])
def test_a_stop_while_the_workers_load(state, number, status):
    (state / "slow").touch()
    with start(state, workers=2) as server:
        workers = server.workers(2)
        eventually(lambda: len(notes(state)) == 2, "they load")
        assert server.logged(f"INFO: loading {APP}")
        server.send_signal(number)
        assert server.wait() == status
        assert all(map(is_gone, workers))
        said = "stopping now" if number == signal.SIGQUIT else "stopping before the application has loaded"
        assert f"{number.name}: {said}\n" in server.log
        assert "in flight" not in server.log


def test_a_worker_that_does_not_end_is_killed_and_its_requests_are_logged(tmp_path):
    entered = tmp_path / "entered"
    # It holds the interpreter, so the worker can neither respond nor end.
    with Server(APP, graceful_timeout=0.2) as server, in_flight(server, "/stuck?keeps=1", entered):
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert re.search(
            r"worker 1 \(pid \d+\) did not end in time and is killed; it was running 1 request\n"
            rf"  GET /stuck\?keeps=1&entered={entered} from 127\.0\.0\.1:\d+, for \d+\.\d+ s, in thread \d+\n",
            server.log,
        )


@pytest.mark.parametrize("arguments", [(), ("--debug",), ("--gevent",)])
def test_the_longest_times_that_can_be_set_are_kept(tmp_path, arguments):
    """Beyond 2^31 ms, which is the most that poll(2) takes."""
    times = ("graceful", "request", "queue", "header", "body", "keepalive", "write")
    options = {f"{name}_timeout": 2_999_999_999 for name in times}
    with Server(APP, *arguments, max_lifetime=2_999_999_999, **options) as server:
        with waiting(server, tmp_path) as client:
            server.send_signal(signal.SIGTERM)
            assert server.logged("finishing the requests in flight")
            (tmp_path / "gate").touch()
            assert client.response().body == b"waited"
        assert server.wait() == 0
    assert "Traceback" not in server.log


# Crashes


@pytest.mark.parametrize(
    ("target", "ending"),
    [
        ("/kill?signal=11", "was killed by SIGSEGV"),
        ("/kill?signal=9", "was killed by SIGKILL, possibly by the kernel, for lack of memory"),
        ("/exit?status=3", "exited with status 3"),
        ("/exit?status=0", "exited with status 0"),
    ],
)
def test_a_crashed_worker_is_logged_with_its_requests_and_replaced(target, ending, tmp_path):
    with Server(APP, workers=2) as server, ExitStack() as stack:
        workers = await_ready(server, 2)
        waiting = list(spread(stack, server, workers).items())
        for number, (_, client) in enumerate(waiting):
            client.send(request(f"/wait?entered={tmp_path}/{number}&gate={tmp_path}/gate"))
            eventually((tmp_path / str(number)).exists, "in flight")
        crashing = stack.enter_context(asking(server, target))
        crashing.rest()
        (dead,) = eventually(lambda: [pid for pid in workers if is_gone(pid)], "one has died")
        await_ready(server, 3)
        (tmp_path / "gate").touch()
        survivors = [client for pid, client in waiting if pid != dead]
        assert survivors
        assert {client.response().body for client in survivors} == {b"waited"}
        (said,) = re.findall(rf"worker \d \(pid {dead}\) (.*(?:\n  .*)*)", server.log[server.log.index("ERROR") :])
        assert said.startswith(ending), said
        carried = [client for pid, client in waiting if pid == dead]
        assert f"it was running {len(carried) + 1} request" in said
        assert f"GET {target} from 127.0.0.1:{crashing.sock.getsockname()[1]}, for " in said
        for client in carried:
            assert f"&gate={tmp_path}/gate from 127.0.0.1:{client.sock.getsockname()[1]}, for " in said


def test_every_request_of_a_dead_worker_is_counted_and_named():
    with Server("srv_deadline:app", threads=32) as server, ExitStack() as stack:
        (worker,) = await_ready(server, 1)
        stuck = [stack.enter_context(asking(server, f"/sleep?deadline=0.2&stuck={number}")) for number in range(32)]
        assert {client.response().status for client in stuck} == {504}
        for number in range(32):
            stack.enter_context(asking(server, f"/gate?runs={number}"))
        eventually(lambda: server.log.count("at the gate") == 32, "all run")
        os.kill(worker, signal.SIGKILL)
        await_ready(server, 2)
        said = server.log[server.log.index("was killed by SIGKILL") :]
        assert "it was running 64 requests, of which the first 20 follow here and 44 in the next entries\n" in said
        assert len(re.findall(r"further requests of worker \d+ \(pid \d+\)\n", said)) == 3
        for number in range(32):
            assert said.count(f"GET /sleep?deadline=0.2&stuck={number} from ") == 1
            assert said.count(f"GET /gate?runs={number} from ") == 1


def test_a_worker_that_dies_again_and_again_is_replaced_at_once():
    """Each time the only one: nobody serves meanwhile."""
    with Server(APP) as server:
        for count in range(1, 9):
            await_ready(server, count)
            with asking(server, "/kill?signal=9") as client:
                client.at_end()
        await_ready(server, 9)


@pytest.mark.parametrize("arguments", [("--workers", "2"), ("--preload",), ("--debug",)], ids=" ".join)
def test_code_that_does_not_load_ends_the_server_with_its_traceback(state, arguments):
    (state / "broken").touch()
    said = start_that_fails(state, *arguments)
    assert said.endswith("error: importing srv_processes failed: RuntimeError: the new code is broken\n")
    assert said.count("Traceback (most recent call last):\n") == 1
    assert "--workers" not in arguments or said.startswith("Traceback")


def test_a_crash_while_loading_ends_the_server_with_one_message(state):
    (state / "fatal").touch()
    assert re.fullmatch(
        r"tailrace: error: the first workers ended before they were ready, so the server stops; the last failure: "
        r"worker 1 \(pid \d+\) was killed by SIGSEGV(?: \(core dumped\))?\n",
        start_that_fails(state),
    )


def test_workers_that_keep_failing_before_they_serve_end_the_server_when_none_is_left(state):
    with start(state) as server:
        (worker,) = await_ready(server, 1)
        (state / "broken").touch()
        os.kill(worker, signal.SIGKILL)
        assert server.wait() == 3
        assert server.log.count("failed to load") == 3
        assert "error: 3 workers in a row ended before they were ready, so the server stops" in server.log
        assert "RuntimeError: the new code is broken" in server.log


# Reloads


def test_a_reload_brings_new_code_worker_by_worker(state):
    (state / "version").write_text("old")
    with start(state, workers=2) as server:
        old = await_ready(server, 2)
        (state / "version").write_text("new")
        server.send_signal(signal.SIGHUP)
        assert server.logged("reload complete")
        # Until then one that drains may still take a client.
        eventually(lambda: all(map(is_gone, old)), "the old workers have ended")
        assert {server.get("/version").body for _ in range(20)} == {b"new"}
        lines = [
            line.split(": ", 1)[1] for line in server.log.partition("SIGHUP")[2].splitlines() if ": worker " in line
        ]
        order = [re.sub(r" \(pid \d+\)| in .*", "", line) for line in lines if "has ended" not in line]
        assert order == ["worker 1 ready", "worker 1 drains", "worker 2 ready", "worker 2 drains"]


def test_code_that_does_not_load_leaves_the_old_workers_and_is_shown(state):
    with start(state, workers=2) as server:
        old = await_ready(server, 2)
        for count, what in enumerate(("broken", "fatal"), 1):
            (state / what).touch()
            server.send_signal(signal.SIGHUP)
            given_up = "reload failed, the old workers keep serving: worker 1 (pid"
            eventually(lambda: server.log.count(given_up) == count, "given up")  # noqa: B023
            (state / what).unlink()
            eventually(lambda: set(children(server.process.pid)) == set(old), "only the old ones are left")
        broken = "failed to load: importing srv_processes failed: RuntimeError: the new code is broken\nTraceback"
        assert broken in server.log
        assert "was killed by SIGSEGV" in server.log
        assert told(server, "/")["pid"] in old
        server.send_signal(signal.SIGHUP)
        assert server.logged("reload complete")
        eventually(lambda: all(map(is_gone, old)), "the old workers have ended")


def test_folders_without_the_page_for_missing_paths_leave_the_old_workers(state, tmp_path):
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "index.html").write_text("page")
    with start(state, workers=1, static=f"/files={folder}", static_fallback="200=index.html") as server:
        old = await_ready(server, 1)
        (folder / "index.html").unlink()
        server.send_signal(signal.SIGHUP)
        assert server.logged("reload failed, the old workers keep serving: worker 1 (pid")
        assert "--static-fallback 200=index.html: no --static folder contains this file" in server.log
        assert told(server, "/")["pid"] in old


def test_a_reload_during_a_reload_is_done_too(state):
    (state / "version").write_text("1")
    with start(state) as server:
        await_ready(server, 1)
        (state / "slow").touch()
        server.send_signal(signal.SIGHUP)
        eventually(lambda: len(notes(state)) == 2, "the first successor loads")
        assert told(server, "/")["pid"] == ready(server)[0], "the old one serves on"
        server.send_signal(signal.SIGHUP)
        assert server.logged("SIGHUP: replacing the workers once more")
        eventually(lambda: len(notes(state)) == 3, "the one that hangs has ended, and another one loads")
        (state / "slow").unlink()
        assert server.logged("reload complete")
        first, last = ready(server)
        eventually(lambda: is_gone(first), "the first has ended")
        assert told(server, "/")["pid"] == last


def test_a_reload_follows_the_link_that_a_deployment_turns(tmp_path):
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "site_of_it.py").write_text(
            "def app(environ, start_response):\n"
            "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
            f"    return [b'{version}']\n"
        )
    current = tmp_path / "current"
    current.symlink_to("one")
    with Server("site_of_it:app", directory=current, environment={"PWD": str(current)}) as server:
        assert server.get("/").body == b"one"
        (first,) = await_ready(server, 1)
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(current)
        server.send_signal(signal.SIGHUP)
        assert server.logged("reload complete")
        eventually(lambda: is_gone(first), "the first has ended")
        assert server.get("/").body == b"two"


def test_a_reload_after_a_deployment_that_removed_the_directory_and_made_it_again(tmp_path):
    def deploy(version):
        shutil.rmtree(tmp_path / "site", ignore_errors=True)
        (tmp_path / "site").mkdir()
        source = f"""
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "3")])
    return [b"{version}"]
"""
        (tmp_path / "site" / "app.py").write_text(source)

    deploy("one")
    with Operated(tmp_path, "app:app", "--chdir", "site") as server:
        assert server.serves().get().body == b"one"
        deploy("two")
        server.process.send_signal(signal.SIGHUP)
        server.logged("reload complete")
        server.until(lambda: server.get().body == b"two", "an answer of the new code")
        server.process.terminate()
        assert server.process.wait(30) == 0


def test_a_stop_during_a_reload(state):
    with start(state, workers=2) as server:
        await_ready(server, 2)
        (state / "slow").touch()
        server.send_signal(signal.SIGHUP)
        eventually(lambda: len(notes(state)) == 3, "the successor loads")
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0


# Recycling


def test_a_worker_that_has_grown_is_replaced(tmp_path):
    with Server(APP, max_rss="100MiB") as server:
        (first,) = await_ready(server, 1)
        with waiting(server, tmp_path) as client:
            told(server, f"/ballast?bytes={100 << 20}")
            await_ready(server, 2)
            assert re.search(rf"worker 1 \(pid {first}\) has 1\d\d MiB in memory \(--max-rss\)", server.log)
            # Drained, not killed.
            (tmp_path / "gate").touch()
            assert client.response().body == b"waited"
        eventually(lambda: is_gone(first), "the first has ended")


def test_a_limit_below_what_the_application_needs_does_not_replace_without_end():
    with Server(APP, max_rss="1MiB") as server:
        told(server, "/")
        server.send_signal(signal.SIGTTIN)
        await_ready(server, 2)
        assert "--max-rss" not in server.log


def test_a_worker_with_a_request_that_does_not_end_is_replaced_and_the_request_is_logged(tmp_path):
    entered = tmp_path / "entered"
    with Server(APP, request_timeout=0.5, graceful_timeout=0.5, threads=8) as server:
        (first,) = await_ready(server, 1)
        with asking(server, f"/stuck?entered={entered}") as client:
            assert client.response().status == 504
        await_ready(server, 2)
        (said,) = re.findall(rf"worker 1 \(pid {first}\) has (.*(?:\n  .*)*)", server.log)
        reason = "a thread in which a request past its deadline does not end"
        assert said.startswith(f"{reason}; replacing it; it was running 1 request\n")
        assert f"\n  GET /stuck?entered={entered} from 127.0.0.1:" in said
        # The first takes clients until it is told to drain, a moment after its successor is ready.
        eventually(lambda: told(server, "/")["pid"] != first, "an answer of the successor")
        eventually(lambda: is_gone(first), "the first has ended")
        assert "did not finish in time" in server.log


# Preloading


def test_preloaded_workers_share_what_was_loaded_once(state):
    with start(state, "--preload", workers=3) as server:
        workers = await_ready(server, 3)
        (mold,) = re.findall(r"mold \(pid (\d+)\) has loaded the application", server.log)
        assert notes(state) == [("loading", mold)]
        os.kill(workers[0], signal.SIGKILL)
        await_ready(server, 4)
        assert len(notes(state)) == 1
        assert "--preload: the application has started threads" in server.log


def test_a_stop_while_the_mold_loads(state, tmp_path):
    (state / "slow").touch()
    path = tmp_path / "app.sock"
    tcp = free_address()
    binds = ["--bind", f"unix:{path}", "--bind", tcp.bind]
    with Server(APP, *binds, "--preload", address=tcp, environment={"STATE": str(state)}) as server:
        eventually(lambda: notes(state), "it loads")
        assert server.stop() == 0
    assert not path.exists()


# Process 1


@pytest.mark.parametrize("arguments", [(), ("--debug",)])
def test_as_process_1_it_reaps_whoever_lost_its_parent(tmp_path, arguments):
    unshare = ["unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no process namespaces here")
    address = free_address()
    command = [*unshare, sys.executable, "-m", "tailrace", APP, "--bind", address.bind, *arguments]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, cwd=APPS, stderr=log) as server:
        try:
            eventually(lambda: "ready in" in (tmp_path / "log").read_text(), "it serves")
            with Client(address) as client:
                for _ in range(5):
                    assert int(client.ask(request("/orphan")).body) > 1
                    assert b'"parent": 1' in client.ask(request("/")).body
            (master,) = children(server.pid)
            # Itself one worker: no orphan stays, neither alive nor as a zombie.
            eventually(lambda: len(children(master)) == 1, "all reaped")
        finally:
            for pid in children(server.pid):
                os.kill(pid, signal.SIGTERM)
        assert server.wait(30) == 0


def test_a_child_of_the_application_dies_by_its_own_signals_and_the_worker_serves_on():
    with Server("srv_processes:app") as server:
        worker = server.pid
        # Forked in a request, told to end by the application, and waited for.
        assert server.get("/child").body == b"-15"
        assert server.get("/").status == 200
        assert server.pid == worker
