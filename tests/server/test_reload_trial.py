"""`--reload-trial`: a reload whose first worker does worse than the old ones is undone, and a good one is not."""

import contextlib
import os
import re
import signal
import threading
from collections import Counter

import pytest
from frameworks.process import nginx
from harness.addresses import free_address
from harness.operated import Checking, operating
from harness.wire import Broken, Client
from server.probes import eventually

GOOD = """
import os
import time

def app(environ, start_response):
    number = int(environ["PATH_INFO"].lstrip("/") or 0)
    body = b"%d." % number * (1 + number % 7 * 997)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("X-Code", NAME)])
    return [body]

NAME = "good"
"""
FAILING = f"""{GOOD}
NAME = "failing"
good = app
def app(environ, start_response):
    if not os.path.exists("fixed") and int(environ["PATH_INFO"].lstrip("/") or 0) % 3 == 0:
        raise RuntimeError("no such column")
    return good(environ, start_response)
"""
SLOW = f"""{GOOD}
NAME = "slow"
good = app
def app(environ, start_response):
    time.sleep(0.15)
    return good(environ, start_response)
"""
CRASHING = f"""{GOOD}
NAME = "crashing"
def app(environ, start_response):
    os._exit(7)
"""
SITE = """
server {
    listen %s;
    location / {
        proxy_pass http://%s;
        proxy_next_upstream off;
    }
}
"""


@pytest.fixture
def operated(tmp_path):
    (tmp_path / "app.py").write_text(GOOD)

    def start(*arguments):
        return operating(tmp_path, "app:app", "--workers", "2", *arguments)

    return start


class Asking:
    """Clients that ask without pause, each time on a new connection: which code answered, and with which status."""

    def __init__(self, address, clients=12):
        self.address = address
        self.counts = Counter()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self):
        number = 0
        while not self._over.is_set():
            number += 1
            try:
                with Client(self.address, 30.0) as client:
                    response = client.ask(f"GET /{number} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
                answer = response.status, response["X-Code"] if response.status == 200 else None
            except (OSError, Broken):
                answer = None, None
            with self._lock:
                self.counts[answer] += 1

    def more(self):
        """Returns after further answers of the good code, at least ten for each client."""
        before = self.of(200, "good")
        eventually(lambda: self.of(200, "good") > before + 10 * len(self._threads), "answers of the old workers")

    def of(self, status, code=None):
        with self._lock:
            return self.counts[status, code]


@contextlib.contextmanager
def front(server, kind):
    """The address to ask: nginx before the server, or the server itself."""
    if kind == "direct":
        yield server.address
        return
    listen = free_address()
    with nginx(listen, SITE % (listen.bind, server.address.bind)):
        yield listen


def reload(server, text):
    (server.directory / "app.new").write_text(text)
    (server.directory / "app.new").rename(server.directory / "app.py")
    server.tell(signal.SIGHUP)


@pytest.mark.parametrize("kind", ["direct", "nginx"])
def test_more_errors_undo_a_reload_long_before_the_end_of_the_trial(operated, kind):
    with operated("--reload-trial", "300") as server:
        server.logged("ready in", 2)
        with front(server, kind) as address, Asking(address) as load:
            reload(server, FAILING)
            server.logged("reload undone, the old workers keep serving: worker 1 ")
            server.logged("has ended")
            # After some of these, all earlier answers have been counted.
            load.more()
            errors = load.of(500)
            load.more()
            assert load.of(500) == errors >= 3
            assert set(load.counts) <= {(200, "good"), (200, "failing"), (500, None)}
        found = re.search(r"has more errors \(--reload-trial\): ([\d,]+) responses, ([\d.]+)% of them 5xx", server.log)
        assert 10 < float(found[2]) < 90
        assert "reload complete" not in server.log


def test_good_code_is_accepted_and_nothing_is_lost(operated):
    with operated("--reload-trial", "0.5") as server:
        server.logged("ready in", 2)
        with Checking(server.address) as clients:
            reload(server, GOOD + "NAME = 'new'\n")
            server.logged("is on trial for 0.5 s (--reload-trial)")
            server.logged("reload accepted: worker 1 ")
            server.replaced()
            clients.go_on()
        assert server.get("/1")["X-Code"] == "new"


def test_code_that_is_slower_is_rejected_at_the_end(operated):
    with operated("--reload-trial", "4", "--threads", "20") as server:
        server.logged("ready in", 2)
        with Asking(server.address, clients=24) as load:
            reload(server, SLOW)
            server.logged("reload undone, the old workers keep serving: worker 1 ")
            assert set(load.counts) <= {(200, "good"), (200, "slow")}
        found = re.search(r"is slower \(--reload-trial\): .*?p95 ([\d.]+) ms; the old.*? p95 ([\d.]+) ms", server.log)
        assert float(found[1]) >= 150
        assert float(found[1]) > float(found[2])


def test_code_that_crashes_is_not_tried_again(operated):
    with operated("--reload-trial", "300") as server:
        server.logged("ready in", 2)
        with Asking(server.address) as load:
            reload(server, CRASHING)
            server.logged("reload failed, the old workers keep serving: worker 1 ")
            load.more()
        assert "exited with status 7" in server.log
        assert server.log.count("ready in") == 3


@pytest.mark.parametrize("more", [[], ["--preload"]], ids=["threads", "preload"])
def test_a_worker_that_is_killed_on_trial_has_failed_and_is_not_accepted(operated, more):
    with operated("--reload-trial", "300", "--workers", "1", *more) as server:
        server.logged("ready in")
        reload(server, GOOD + "NAME = 'new'\n")
        server.logged("is on trial")
        (worker,) = re.findall(r"\(pid (\d+)\) is on trial", server.log)
        os.kill(int(worker), signal.SIGKILL)
        server.logged("reload failed")
        # A further worker loads the new code.
        assert server.get("/1")["X-Code"] == "good"
        server.tell(signal.SIGTTIN)
        server.logged("SIGTTIN: 2 workers")
        assert "reload accepted" not in server.log


def test_a_further_signal_gives_up_the_trial_and_tries_the_newest_code(operated):
    with operated("--reload-trial", "300") as server:
        server.logged("ready in", 2)
        with Asking(server.address) as load:
            reload(server, GOOD + "NAME = 'second'\n")
            server.until(lambda: load.of(200, "second"), "answers of the worker on trial")
            reload(server, FAILING)
            server.logged("reload undone, the old workers keep serving: worker 1 ")
            server.logged("has ended", times=2)
            load.more()
            seconds = load.of(200, "second")
            load.more()
            assert load.of(200, "second") == seconds
        assert server.log.count("is on trial for") == 2


def test_code_that_was_rejected_is_not_rolled_out_by_recycling(operated):
    with operated("--reload-trial", "300", "--max-requests", "150") as server:
        server.logged("ready in", 2)
        with Asking(server.address, clients=2) as load:
            reload(server, FAILING)
            server.logged("is on trial for")
            recycled = server.log.count("; replacing it")
            server.logged("reload undone, the old workers keep serving: worker 1 ")
            server.logged("restore the old code: until the next reload, no worker is recycled")
            rejected = re.findall(r"worker 1 \(pid \d+\)", server.log)[-1]
            server.logged(f"{rejected} has ended")
            # Its last answers may still be on their way to the clients.
            load.more()
            errors = load.of(500)
            # Both have served far more than that.
            server.until(lambda: load.of(200, "good") > 1500, "answers of the old workers")
            assert load.of(500) == errors
            assert server.log.count("; replacing it") == recycled
            reload(server, GOOD)
            server.logged("is on trial for", times=2)


def test_a_trial_ends_if_no_old_worker_is_left(operated):
    with operated("--reload-trial", "300") as server:
        server.logged("ready in", times=2)
        old = [int(pid) for pid in re.findall(r"worker \d \(pid (\d+)\) ready in", server.log)]
        reload(server, GOOD + "NAME = 'new'\n")
        server.logged("is on trial for")
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        server.logged("reload accepted: no old worker is left to compare worker 1 ")
        server.logged("reload complete")
        assert server.get("/1")["X-Code"] == "new"


def test_a_stop_does_not_wait_for_the_trial(operated):
    with operated("--reload-trial", "300") as server:
        server.logged("ready in", 2)
        server.tell(signal.SIGHUP)
        server.logged("is on trial for")
        assert server.stop() == 0
