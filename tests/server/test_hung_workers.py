"""Workers that hang are replaced while others serve; workers with long requests are not replaced."""

import os
import re
import signal

import pytest
from harness.server import Server
from server.probes import asking, eventually, in_flight, told, waiting

APP = "srv_processes:app"
MODES = pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--threads", "1")], ids=["threads", "gevent", "one"])


def others(server, pid):
    """The workers beside one."""
    return [other for other in server.workers() if other != pid]


@pytest.mark.nightly(gate=1)
@MODES
def test_a_worker_in_which_a_thread_does_not_release_the_interpreter_is_replaced(tmp_path, arguments):
    entered = tmp_path / "entered"
    with Server(APP, *arguments, hang_timeout=3) as server:
        assert server.logged("ready in")
        first = server.pid
        with in_flight(server, "/stuck?keeps=1", entered) as client:
            eventually(lambda: server.log.count("ready in") == 2, "a successor")
            assert told(server, "/")["pid"] != first
            client.rest()
        said = server.log[server.log.index("ERROR") :]
        assert re.match(
            rf"ERROR: worker 1 \(pid {first}\) has a thread that has held the interpreter for 3 s \(--hang-timeout\); "
            r"killing and replacing it; it was running 1 request\n"
            rf"  GET /stuck\?keeps=1&entered={entered} ",
            said,
        ), said
        # The stack of the thread that holds it.
        assert re.search(r'hread 0x\w+ .*\n  File ".*srv_processes.py", line \d+ in answer\n', said), said
        eventually(lambda: others(server, first) == server.workers(), "the first one is gone")


@pytest.mark.nightly(gate=1)
@MODES
def test_a_worker_is_replaced_also_if_the_first_request_does_not_release_the_interpreter(tmp_path, arguments):
    (tmp_path / "slow").touch()
    environment = {"STATE": str(tmp_path)}
    with Server(APP, "--workers", "1", *arguments, hang_timeout=3, environment=environment) as server:
        # It waits until the application is loaded, and is then there before the worker says that it serves.
        with asking(server, f"/stuck?keeps=1&entered={tmp_path}/entered", deadline=30) as client:
            (tmp_path / "slow").unlink()
            eventually(lambda: server.log.count("ready in") == 2, "a successor")
            client.rest()
        assert "has a thread that has held the interpreter for 3 s (--hang-timeout)" in server.log
        told(server, "/")


def test_a_worker_that_is_stopped_is_replaced(tmp_path):
    with Server(APP, hang_timeout=3) as server:
        assert server.logged("ready in")
        first = server.pid
        with waiting(server, tmp_path) as client:
            os.kill(first, signal.SIGSTOP)
            eventually(lambda: server.log.count("ready in") == 2, "a successor")
            assert told(server, "/")["pid"] != first
            client.rest()
        assert (
            f"worker 1 (pid {first}) has given no heartbeat for 3 s (--hang-timeout); killing and replacing it"
            in server.log
        )
        assert f"GET /wait?gate={tmp_path}/gate" in server.log
        eventually(lambda: others(server, first) == server.workers(), "the first one is gone")


@pytest.mark.nightly(gate=3)
@MODES
@pytest.mark.parametrize("way", ["compute", "sleep", "blocks"])
def test_a_worker_with_a_long_request_is_not_replaced(arguments, way):
    with Server(APP, *arguments, hang_timeout=3) as server:
        with asking(server, f"/{way}?seconds=6", deadline=60) as client:
            assert client.response().body == b"at last"
        assert server.log.count("ready in") == 1
    assert "--hang-timeout" not in server.log


def test_hang_timeout_0_does_not_replace_a_worker_that_hangs():
    with Server(APP, hang_timeout=0) as server:
        first = told(server, "/")["pid"]
        os.kill(first, signal.SIGSTOP)
        with Server(APP, hang_timeout=3) as looks:
            assert looks.logged("ready in")
            os.kill(looks.pid, signal.SIGSTOP)
            assert looks.logged("has given no heartbeat for 3 s", 30)
        os.kill(first, signal.SIGCONT)
        assert told(server, "/")["pid"] == first
    assert "--hang-timeout" not in server.log
