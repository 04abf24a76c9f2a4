"""If the system refuses to start a thread, by RLIMIT_NPROC like by a container's pids.max, its work is not done, the
log says so once, and the server tries again."""

import subprocess
import sys
from contextlib import ExitStack

import pytest
from harness.limited_user import prefix
from harness.operated import operating
from harness.wire import Client
from server.probes import request

APP = """
import os
import resource
import time
from urllib.parse import parse_qs

import tailrace


def touch(path):
    open(path, "w").close()


def may_start_threads(yes):
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard if yes else 1, hard))


def app(environ, start_response):
    number = parse_qs(environ["QUERY_STRING"])["n"][0]
    if environ["PATH_INFO"] == "/deadline":
        environ["tailrace.set_deadline"](0.1)
    if environ["PATH_INFO"] == "/disconnect":
        environ["tailrace.on_disconnect"](lambda: touch(f"noticed{number}"))
    if number == "1":
        may_start_threads(False)
    touch(f"began{number}")
    try:
        while not os.path.exists("gate"):
            if number == "1" and os.path.exists("more"):
                may_start_threads(True)
                os.rename("more", "started")
            time.sleep(0.01)
    except tailrace.RequestTimeout:
        touch(f"noticed{number}")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done"]
"""
WITHOUT = {
    "deadline": "requests past their deadline get their 504 and continue to run",
    "disconnect": "requests whose clients have disconnected are not cancelled",
    "slow": "slow requests are not logged (--slow-request-log)",
}


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("deadline", []),
        ("disconnect", []),
        ("slow", ["--slow-request-log", "0.1"]),
        ("slow", ["--slow-request-log", "0.1", "--gevent"]),
    ],
    ids=["deadline", "disconnect", "slow", "slow-greenlets"],
)
def test_a_thread_that_was_refused_is_started_at_the_next_need(tmp_path, what, arguments):
    (tmp_path / "app.py").write_text(APP)
    with ExitStack() as stack, operating(tmp_path, "app:app", *arguments, prefix=prefix()) as server:

        def ask(number):
            client = stack.enter_context(Client(server.address))
            client.send(request(f"/{what}?n={number}"))
            server.until((tmp_path / f"began{number}").exists, "the beginning of a request")
            if what == "disconnect":
                client.abort()

        ask(1)
        server.logged(f"cannot start a thread (Resource temporarily unavailable (os error 11)): {WITHOUT[what]}")
        (tmp_path / "more").touch()
        server.until((tmp_path / "started").exists, "a process that may start threads")
        ask(2)
        if what == "slow":
            server.logged("/slow?n=2")
        else:
            server.until((tmp_path / "noticed2").exists, "what a thread does")
        assert server.log.count(WITHOUT[what]) == 1
        (tmp_path / "gate").touch()
        assert server.stop() == 0


@pytest.mark.parametrize("more", [1, 2, 3])
@pytest.mark.parametrize(
    ("arguments", "processes"),
    [([], 2), (["--gevent"], 2), (["--preload"], 3)],
    ids=["threads", "greenlets", "preload"],
)
def test_a_start_without_enough_threads_is_one_line_with_its_remedy(tmp_path, arguments, processes, more):
    (tmp_path / "app.py").write_text(APP)
    limited = ["prlimit", f"--nproc={processes + more}", sys.executable, *prefix()]
    command = [*limited, "-m", "tailrace", "app:app", "--bind", "127.0.0.1:0", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "raise the limit of processes and threads (`ulimit -u`, TasksMax= of systemd)" in ended.stderr
    assert "Traceback" not in ended.stderr
