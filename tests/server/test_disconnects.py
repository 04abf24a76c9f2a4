"""Clients that leave while the application works on their requests: callbacks, cancellation, and what counts as
leaving."""

import json
import signal

import pytest
from frameworks.process import nginx
from harness.addresses import free_address
from harness.operated import Operated
from harness.postgres import Postgres
from harness.status import document
from harness.tools import need_module
from harness.wire import Client
from server.probes import request

APP = """
import gc
import json
import os
import threading
import time

import tailrace

events = []
go_on = threading.Event()

def note(*what):
    events.append([time.monotonic(), *what])

def wait(name):
    # In short steps: an exception is raised in a thread when that runs Python code.
    try:
        for _ in range(200):
            time.sleep(0.01)
    except BaseException as error:
        note(name, type(error).__name__, isinstance(error, Exception))
        raise
    note(name, "not interrupted")

def app(environ, start_response):
    path = environ["PATH_INFO"]
    on_disconnect = environ["tailrace.on_disconnect"]
    name = environ["REQUEST_METHOD"] + " " + path
    body = [b"done"]
    if path == "/free":
        go_on.set()
    elif path == "/events":
        body = [json.dumps(events).encode()]
    elif path == "/wait":
        note(name, "began")
        wait(name)
    elif path == "/callbacks":
        def fail():
            note(name, "fails")
            raise ValueError("a callback that fails")
        on_disconnect(lambda: note(name, "removed")).remove()
        with on_disconnect(lambda: note(name, "out of its block")):
            pass
        on_disconnect(fail)
        on_disconnect(lambda: (note(name, "called", threading.current_thread().name), go_on.set()))
        note(name, "began")
        go_on.wait(10)
        note(name, environ["tailrace.client_disconnected"]())
    elif path == "/keeps":
        on_disconnect(lambda: note(name, "called"))
        environ["tailrace.set_deadline"](None)
    elif path == "/blocks":
        # Its callback ends long after that.
        on_disconnect(lambda: (note(name, "called"), go_on.wait(10), note(name, "freed")))
        note(name, "began")
        go_on.wait(10)
    elif path == "/block":
        # The exception leaves the block, perhaps before the callback was called.
        with on_disconnect(lambda: note(name, "called")):
            note(name, "began")
            wait(name)
    elif path == "/forks":
        on_disconnect(lambda: note(name, "forked", os.fork()))
        note(name, "began")
        wait(name)
    elif path == "/many":
        kept = [on_disconnect(lambda: note(name, "called")) for _ in range(3)]
        for _ in range(100_000):
            with on_disconnect(print):
                pass
        note(name, "began", len([each for each in gc.get_objects() if type(each).__name__ == "Subscription"]))
        wait(name)
    elif path == "/late":
        note(name, "began")
        time.sleep(0.5)
        on_disconnect(lambda: note(name, "called"))
        time.sleep(0.2)
    elif path == "/caught":
        note(name, "began")
        try:
            wait(name)
        except tailrace.ClientDisconnected:
            pass
    elif path in ("/iterates", "/pauses"):
        def blocks():
            try:
                while True:
                    yield b"x"
                    time.sleep(0.01)
                    # A write to a client that has left would end it, too.
                    while path == "/pauses":
                        time.sleep(0.01)
            except BaseException as error:
                note(name, type(error).__name__)
                raise
            finally:
                note(name, "cleaned up")
        note(name, "began")
        body = blocks()
    elif path.startswith("/streams/"):
        on_disconnect(lambda: note(name, "called"))
        note(name, "began")
        start_response("200 OK", [])
        return iter(lambda: bytes(5000), b"")
    elif path.startswith("/uploads/"):
        with on_disconnect(lambda: note(name, "called")):
            note(name, "began")
            environ["wsgi.input"].read()
    elif path == "/waits-for-close":
        closed = threading.Event()
        on_disconnect(lambda: (closed.wait(), note(name, "called")))
        class Stream:
            def __iter__(self):
                return iter(lambda: bytes(5000), b"")
            def close(self):
                closed.set()
        note(name, "began")
        start_response("200 OK", [])
        return Stream()
    elif path == "/rest":
        def blocks():
            with on_disconnect(lambda: note(name, "called")):
                yield b"done"
                wait(name)
        note(name, "began")
        start_response("200 OK", [("Content-Length", "4")])
        return blocks()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return body
"""
FORMAT = "{target} {ending}"


class Served:
    """A server of that application, and clients that leave."""

    def __init__(self, folder, *arguments, gevent=False, app=APP):
        folder.mkdir(exist_ok=True)
        (folder / "app.py").write_text(app)
        arguments = ("--workers", "1", "--access-log", "access.log", "--access-log-format", FORMAT, *arguments)
        self.folder = folder
        self.server = Operated(folder, "app:app", *arguments, *["--gevent"] * gevent)
        self.until = self.server.until

    def __enter__(self):
        self.server.__enter__()
        self.server.serves()
        return self

    def __exit__(self, *error):
        if error[0] is None:
            self.server.stop()
        self.server.__exit__(*error)

    def events(self):
        return json.loads(self.server.get("/events").body)

    def has(self, *event):
        return list(event) in [each[1:] for each in self.events()]

    def count(self, what):
        return [each[2] for each in self.events()].count(what)

    def notes(self, *event):
        """Returns once the application has noted this event."""
        self.until(lambda: self.has(*event), f"{event}")

    def asks(self, target, method="GET", waits=True):
        """A connection on which the application runs a request."""
        client = Client(self.server.address, 20)
        client.send(f"{method} {target} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n".encode())
        if waits:
            self.notes(f"{method} {target}", "began")
        return client

    def leaves(self, target, method="GET", waits=True):
        """The client of such a request is killed with unread bytes, or its machine restarts."""
        self.asks(target, method, waits).abort()

    def endings(self):
        return dict(line.split() for line in (self.folder / "access.log").read_text().splitlines())

    def ends(self, target, ending):
        """Returns once the access log has the request, which must have ended so."""
        self.until(lambda: target in self.endings(), "its line in the access log")
        assert self.endings()[target] == ending


MODES = pytest.mark.parametrize("gevent", [False, True], ids=["threads", "greenlets"])


@MODES
def test_a_request_whose_client_has_left_is_cancelled(tmp_path, gevent):
    at = free_address()
    with Served(tmp_path, "--cancel-on-disconnect", "safe", "--status", at.bind, gevent=gevent) as served:
        served.leaves("/wait", "POST")
        served.leaves("/wait")
        # It is no Exception.
        served.notes("GET /wait", "ClientDisconnected", False)
        assert not served.has("POST /wait", "ClientDisconnected", False), "a method that changes something"
        served.ends("/wait", "cancelled")
        served.until(lambda: document(at)["responses"]["endings"]["cancelled"] == 1, "the figure")
        # An application may catch it.
        served.leaves("/caught")
        served.notes("GET /caught", "ClientDisconnected", False)
        served.ends("/caught", "cancelled")
        # It is no error of the application, and the next request of the same thread is not concerned.
        assert "Traceback" not in served.server.log
        assert served.server.get("/").body == b"done"
        # The thread that cancelled them ends with the worker.
        served.server.tell(signal.SIGHUP)
        served.server.logged("ready in", 2)
        served.server.logged("has ended")
    with Served(tmp_path / "all", "--cancel-on-disconnect", "all", gevent=gevent) as served:
        served.leaves("/wait", "POST")
        served.notes("POST /wait", "ClientDisconnected", False)


@pytest.fixture(scope="module", params=[False, True], ids=["threads", "greenlets"])
def calling(request, tmp_path_factory):
    """A server that cancels nothing, and the address of its status."""
    at = free_address()
    with Served(tmp_path_factory.mktemp("calling"), "--status", at.bind, gevent=request.param) as served:
        yield served, at


def test_without_the_option_nothing_is_cancelled(calling):
    served, _ = calling
    served.leaves("/wait")
    served.notes("GET /wait", "not interrupted")
    served.ends("/wait", "client-disconnected")


def test_callbacks_are_called_once_the_client_has_left(calling):
    served, at = calling
    # That of a request that is done is not: the client leaves an idle connection.
    client = served.asks("/keeps", waits=False)
    assert client.response().body == b"done"
    client.abort()
    # The client closes as browsers and curl do. The unread rest is sent anyway.
    served.asks("/callbacks").close()
    served.notes("GET /callbacks", True)
    said = [each[2] for each in served.events() if each[1] == "GET /callbacks"]
    # Neither the removed ones, nor is one lost because another fails.
    assert said == ["began", "fails", "called", True]
    served.server.logged("exception in a callback of tailrace.on_disconnect")
    assert "ValueError: a callback that fails" in served.server.log
    assert not served.has("GET /keeps", "called")
    served.ends("/callbacks", "complete")

    def gone():
        return {each["endpoint"]: each["client_disconnected"] for each in document(at)["endpoints"]}

    served.until(lambda: gone().get("GET /callbacks") == 1, "the count of its endpoint")
    assert gone()["GET /events"] == 0
    # One that has left before is noticed by a late subscription.
    served.leaves("/late")
    served.notes("GET /late", "called")


def test_a_client_that_half_closes_gets_its_response_unless_it_is_cancelled(calling):
    served, _ = calling
    with served.asks("/iterates") as client:
        client.finish_sending()
        response = client.head()
        for _ in range(50):
            assert set(client.chunk(response)) == {ord("x")}
        assert not served.has("GET /iterates", "cleaned up")
        client.abort()
        served.notes("GET /iterates", "cleaned up")


def test_subscriptions_that_are_over_take_no_memory(calling):
    served, _ = calling
    client = served.asks("/many", waits=False)

    def began():
        return [each for each in served.events() if each[1:3] == ["GET /many", "began"]]

    served.until(began, "the beginning")
    assert began()[0][3] < 200
    client.abort()
    many = ["GET /many", "called"]
    served.until(lambda: [each[1:] for each in served.events()].count(many) == 3, "the callbacks")


@MODES
@pytest.mark.parametrize("cancelled", ["off", "all"])
@pytest.mark.parametrize("leaves", ["reset", "close"])
def test_callbacks_are_called_once_even_if_the_request_notices_first(tmp_path, gevent, cancelled, leaves):
    arguments = ("--stream-body", "--cancel-on-disconnect", cancelled)
    with Served(tmp_path, *arguments, gevent=gevent) as served:
        targets = [f"/{kind}/{number}" for number in range(10) for kind in ("streams", "uploads")]
        for target in targets:
            client = Client(served.server.address)
            client.send(f"POST {target} HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\nthe beginning".encode())
            served.notes(f"POST {target}", "began")
            if "streams" in target:
                client.sock.recv(1000)
            client.abort() if leaves == "reset" else client.close()
        served.until(lambda: {*targets} <= {*served.endings()}, "all endings")
        served.until(lambda: served.count("called") >= len(targets), "all callbacks")
        called = [each[1] for each in served.events() if each[2] == "called"]
        assert sorted(called) == sorted(f"POST {target}" for target in targets)


@MODES
def test_a_callback_that_blocks_delays_no_cancellation(tmp_path, gevent):
    with Served(tmp_path, "--cancel-on-disconnect", "safe", gevent=gevent) as served:
        served.leaves("/blocks", "POST")
        served.notes("POST /blocks", "called")
        served.leaves("/wait")
        served.notes("GET /wait", "ClientDisconnected", False)
        assert not served.has("POST /blocks", "freed")
        served.server.get("/free")
        served.notes("POST /blocks", "freed")
        # Callbacks are called although their blocks are left by the exception.
        for _ in range(5):
            served.leaves("/block")
        for what in ("ClientDisconnected", "called"):
            served.until(lambda what=what: served.count(what) == 6, what)


def test_a_process_that_a_callback_forks_ends_with_it(tmp_path):
    with Served(tmp_path) as served:
        before = set(served.server.processes())
        served.leaves("/forks")
        served.until(lambda: served.count("forked"), "the fork")
        served.until(lambda: set(served.server.processes()) <= before, "the end of the child")


@MODES
@pytest.mark.parametrize("way", ["close", "half-close"])
def test_a_client_that_closes_is_cancelled(tmp_path, gevent, way):
    with Served(tmp_path, "--cancel-on-disconnect", "safe", gevent=gevent) as served:
        with served.asks("/pauses") as client:
            client.finish_sending() if way == "half-close" else client.close()
            served.notes("GET /pauses", "cleaned up")
        assert served.has("GET /pauses", "ClientDisconnected")
        served.ends("/pauses", "cancelled")


@MODES
def test_a_response_that_is_complete_is_not_cancelled(tmp_path, gevent):
    with Served(tmp_path, "--cancel-on-disconnect", "all", gevent=gevent) as served:
        client = served.asks("/rest")
        assert client.response().body == b"done"
        client.abort()
        served.notes("GET /rest", "not interrupted")
        assert not served.has("GET /rest", "called")


@MODES
def test_a_callback_may_wait_for_the_end_of_its_request(tmp_path, gevent):
    with Served(tmp_path, "--max-greenlets" if gevent else "--threads", "2", gevent=gevent) as served:
        for number in range(5):
            client = served.asks("/waits-for-close")
            client.sock.recv(1000)
            client.abort()
            served.until(lambda number=number: served.count("called") > number, "the callback")


@MODES
def test_a_queued_request_whose_client_has_left_never_runs(tmp_path, gevent):
    limit = ("--max-greenlets" if gevent else "--threads", "1")
    with Served(tmp_path, "--cancel-on-disconnect", "safe", *limit, gevent=gevent) as served:
        with served.asks("/late", waits=False) as first, served.asks("/wait", waits=False) as second:
            second.finish_sending()
            assert first.response().status == 200
            second.at_end()
        assert not served.has("GET /wait", "began")
        served.ends("/wait", "cancelled")


@MODES
def test_no_exception_reaches_another_request(tmp_path, gevent):
    """Clients that leave at random moments of quick requests, beside others that stay."""
    app = """
def app(environ, start_response):
    total = 0
    try:
        for number in range(2000):
            total += number
    except BaseException as error:
        print("interrupted", environ["PATH_INFO"], type(error).__name__, flush=True)
        raise
    start_response("200 OK", [("Content-Length", "4")])
    return [b"done"]
"""
    with Served(tmp_path, "--cancel-on-disconnect", "all", "--threads", "4", gevent=gevent, app=app) as served:
        with Client(served.server.address) as stays:
            for number in range(400):
                leaves = [Client(served.server.address) for _ in range(3)]
                for client in leaves:
                    client.send(request("/leaves") * (1 + number % 3))
                stays.send(request("/stays"))
                for client in leaves:
                    client.abort()
                assert stays.response().body == b"done"
        assert "interrupted /stays" not in served.server.log
        assert "Traceback" not in served.server.log


DATABASE = """
import time

import tailrace
%s

ACTIVE = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/running":
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute(ACTIVE)
            body = str(cursor.fetchone()[0]).encode()
    else:
        connection = connect()
        try:
            with connection.cursor() as cursor, environ["tailrace.on_disconnect"](connection.cancel):
                cursor.execute("select pg_sleep(60)")
        except tailrace.ClientDisconnected:
            raise
        except Exception as error:
            print("query:", type(error).__name__, flush=True)
        finally:
            connection.close()
        body = b"done"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]
"""
DRIVERS = {
    "psycopg2": "import psycopg2\ndef connect():\n    return psycopg2.connect(DSN)",
    "psycopg": "import psycopg\ndef connect():\n    return psycopg.connect(DSN)",
}


@pytest.fixture(scope="module")
def postgres():
    with Postgres() as server:
        yield server


@pytest.mark.parametrize("driver", DRIVERS)
@MODES
def test_a_query_ends_when_its_client_leaves(tmp_path, postgres, driver, gevent):
    need_module(driver)
    app = DATABASE % DRIVERS[driver].replace("DSN", repr(postgres.dsn))
    if gevent and driver == "psycopg2":
        app = "from psycogreen.gevent import patch_psycopg\npatch_psycopg()\n" + app
    with Served(tmp_path, gevent=gevent, app=app) as served:
        a_query_ends(served)
        served.server.logged("query: QueryCanceled")


def a_query_ends(served):
    client = served.asks("/query", waits=False)
    served.until(lambda: served.server.get("/running").body == b"1", "the query")
    client.abort()
    served.until(lambda: served.server.get("/running").body == b"0", "the end of the query")


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_behind_nginx_a_disconnect_is_seen(tmp_path, unix):
    """nginx closes its connection by a FIN, which a UNIX socket shows as closed in both directions."""
    listen, way = free_address(), tmp_path / "app.sock"
    more = ("--bind", f"unix:{way}") if unix else ()
    with Served(tmp_path, "--cancel-on-disconnect", "safe", *more) as served:
        upstream = f"unix:{way}:" if unix else served.server.address.bind
        site = f"server {{ listen {listen.bind}; location / {{ proxy_pass http://{upstream}; }} }}"
        with nginx(listen, site):
            with Client(listen) as client:
                client.send(request("/wait"))
                served.notes("GET /wait", "began")
            served.notes("GET /wait", "ClientDisconnected", False)


DJANGO = """
import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="tests",
    DATABASES={
        "default": {"ENGINE": "django.db.backends.postgresql", "HOST": HOST, "USER": "tests", "NAME": "postgres"}
    },
)
django.setup()

from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpResponse
from django.urls import path

ACTIVE = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"

def slow(request):
    connection.ensure_connection()
    with request.META["tailrace.on_disconnect"](connection.connection.cancel), connection.cursor() as cursor:
        cursor.execute("select pg_sleep(60)")
    return HttpResponse("done")

def running(request):
    with connection.cursor() as cursor:
        cursor.execute(ACTIVE)
        return HttpResponse(str(cursor.fetchone()[0]))

urlpatterns = [
    path("query", slow),
    path("running", running),
]
app = get_wsgi_application()
"""


def test_a_view_of_django_ends_with_its_query(tmp_path, postgres):
    app = DJANGO.replace("HOST,", f"{str(postgres.folder)!r},")
    with Served(tmp_path, "--cancel-on-disconnect", "safe", app=app) as served:
        a_query_ends(served)
        served.ends("/query", "cancelled")
        # The worker and its connections to the database are as good as before.
        assert served.server.get("/running").status == 200


RECIPES = """
import json
import subprocess

events = []

def app(environ, start_response):
    path, on_disconnect = environ["PATH_INFO"], environ["tailrace.on_disconnect"]
    if path == "/events":
        body = json.dumps(events).encode()
    elif path == "/process":
        with subprocess.Popen(["sleep", "60"]) as process, on_disconnect(process.kill):
            events.append([0, "GET /process", "began"])
            process.wait()
        events.append([0, "GET /process", process.returncode])
        body = b"done"
    elif path == "/greenlets":
        import gevent
        workers = [gevent.spawn(gevent.sleep, 60) for _ in range(3)]
        with on_disconnect(lambda: gevent.killall(workers, block=False)):
            events.append([0, "GET /greenlets", "began"])
            gevent.joinall(workers)
        events.append([0, "GET /greenlets", [each.dead for each in workers]])
        body = b"done"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]
"""


@MODES
def test_a_subprocess_and_greenlets_of_a_request_are_killed_when_the_client_leaves(tmp_path, gevent):
    with Served(tmp_path, gevent=gevent, app=RECIPES) as served:
        served.leaves("/process")
        served.notes("GET /process", -9)
        if gevent:
            served.leaves("/greenlets")
            served.notes("GET /greenlets", [True] * 3)
