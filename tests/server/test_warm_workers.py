"""`--warmup` in workers: at the start, at a reload, and in the processes of each mode."""

import signal

import pytest
from harness.operated import Checking, Operated

APP = """
import os
import threading

asked = []


def app(environ, start_response):
    if environ.get("tailrace.warmup"):
        asked.append(environ["PATH_INFO"])
        if os.path.exists("broken"):
            raise RuntimeError("no database")
    number = environ["PATH_INFO"].lstrip("/")
    body = b"%d." % int(number) * (1 + int(number) % 7 * 997) if number.isdigit() else ",".join(asked).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""


@pytest.fixture
def operated(tmp_path):
    (tmp_path / "app.py").write_text(APP)

    def start(*arguments):
        return Operated(tmp_path, "app:app", "--warmup", "/a", "--warmup", "http://shop.example/b", *arguments)

    return start


@pytest.mark.parametrize("mode", [("--workers", "2"), ("--workers", "2", "--preload"), ("--gevent",), ("--debug",)])
def test_a_worker_answers_the_requests_of_its_warm_up_before_it_serves(operated, mode):
    with operated(*mode) as server:
        server.logged("listening on")
        for _ in range(6):
            assert server.get().body == b"/a,/b"
        server.logged("--warmup /a: 200 OK in ")
        server.stop()


def test_a_reload_whose_warm_up_fails_is_undone(operated, tmp_path):
    with operated("--workers", "2") as server:
        server.serves()
        with Checking(server.address) as clients:
            (tmp_path / "broken").touch()
            server.tell(signal.SIGHUP)
            server.logged("reload failed")
            clients.go_on()
            (tmp_path / "broken").unlink()
            server.tell(signal.SIGHUP)
            server.logged("reload complete")
            clients.go_on()
        assert "--warmup /a: the application raised RuntimeError: no database" in server.log
        assert 'raise RuntimeError("no database")' in server.log
        server.stop()


def test_a_warm_up_that_fails_ends_the_start(operated, tmp_path):
    (tmp_path / "broken").touch()
    with operated() as server:
        assert server.process.wait(20) == 3
        assert "--warmup /a: the application raised RuntimeError: no database" in server.log


def test_a_preloaded_application_is_warmed_up_once_unless_hooks_prepare_the_workers(operated, tmp_path):
    with operated("--workers", "2", "--preload") as server:
        server.logged("ready in", 2)
        assert server.log.count("--warmup /a: 200 OK in ") == 1
        server.stop()
    (tmp_path / "prepared.py").write_text("def worker_start(worker): pass\n")
    with operated("--workers", "2", "--preload", "--hooks", "prepared") as server:
        server.logged("ready in", 2)
        assert server.log.count("--warmup /a: 200 OK in ") == 2
        server.stop()


def test_a_mold_whose_warm_up_fails_undoes_the_reload(operated, tmp_path):
    with operated("--workers", "2", "--preload") as server:
        server.logged("ready in", 2)
        with Checking(server.address) as clients:
            (tmp_path / "broken").touch()
            server.tell(signal.SIGHUP)
            server.logged("failed to load: --warmup /a: the application raised")
            assert "reload failed, the old workers keep serving: mold (pid " in server.log
            clients.go_on()
        server.stop()
