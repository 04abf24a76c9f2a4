"""Clients that leave while the application works on their requests: callbacks, cancellation, and what counts as
leaving."""

import json
import re
import signal
import socket
import struct
import urllib.request

import pytest
from frameworks.process import Process
from harness.addresses import free_address
from harness.fronts import nginx_with
from harness.operated import Operated
from harness.postgres import Postgres
from harness.tools import need_module, need_tool

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
        note(name, environ["tailrace.client_gone"]())
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
    elif path == "/iterates":
        def blocks():
            try:
                while True:
                    yield b"x"
                    time.sleep(0.01)
            except BaseException as error:
                note(name, type(error).__name__)
                raise
            finally:
                note(name, "cleaned up")
        note(name, "began")
        body = blocks()
    elif path == "/rest":
        def blocks():
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

    def __init__(self, folder, *arguments, gevent=False, app=APP, unix=False):
        (folder / "app.py").write_text(app)
        arguments = ("--workers", "1", "--access-log", "access.log", "--access-log-format", FORMAT, *arguments)
        self.folder = folder
        self.server = Operated(folder, "app:app", *arguments, *["--gevent"] * gevent)

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

    def asks(self, target, method="GET", waits=True):
        """A connection on which the application runs a request."""
        address = self.server.address
        client = socket.create_connection((address.host, address.port))
        client.sendall(f"{method} {target} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n".encode())
        if waits:
            self.server.until(lambda: self.has(f"{method} {target}", "began"), f"the beginning of {target}")
        return client

    def endings(self):
        return dict(line.split() for line in (self.folder / "access.log").read_text().splitlines())


def reset(client):
    """The client is killed with unread bytes, or its machine restarts."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


MODES = pytest.mark.parametrize("gevent", [False, True], ids=["threads", "greenlets"])


@MODES
def test_a_request_whose_client_has_left_is_cancelled(tmp_path, gevent):
    with Served(tmp_path, "--cancel-on-disconnect", "safe", gevent=gevent) as served:
        reset(served.asks("/wait"))
        served.server.until(
            lambda: served.has("GET /wait", "ClientDisconnected", False), "the exception, which is no Exception"
        )
        served.server.until(lambda: "/wait" in served.endings(), "its line in the access log")
        assert served.endings()["/wait"] == "cancelled"
        # It is no error of the application.
        assert "Traceback" not in served.server.log
        # The next request of the same thread is not concerned.
        assert served.server.get("/").body == b"done"


@MODES
def test_methods_that_change_something_are_cancelled_on_request_only(tmp_path, gevent):
    (tmp_path / "safe").mkdir()
    with Served(tmp_path / "safe", "--cancel-on-disconnect", "safe", gevent=gevent) as served:
        reset(served.asks("/wait", "POST"))
        reset(served.asks("/wait", "GET"))
        served.server.until(lambda: served.has("GET /wait", "ClientDisconnected", False), "the one")
        assert not served.has("POST /wait", "ClientDisconnected", False)
    (tmp_path / "all").mkdir()
    with Served(tmp_path / "all", "--cancel-on-disconnect", "all", gevent=gevent) as served:
        reset(served.asks("/wait", "POST"))
        served.server.until(lambda: served.has("POST /wait", "ClientDisconnected", False), "the exception")


@MODES
def test_without_the_option_nothing_is_cancelled(tmp_path, gevent):
    with Served(tmp_path, gevent=gevent) as served:
        reset(served.asks("/wait"))
        served.server.until(lambda: served.has("GET /wait", "not interrupted"), "its end")
        served.server.until(lambda: "/wait" in served.endings(), "its line in the access log")
        assert served.endings()["/wait"] == "client-gone"


@MODES
def test_callbacks_are_called_once_the_client_has_left(tmp_path, gevent):
    with Served(tmp_path, gevent=gevent) as served:
        reset(served.asks("/callbacks"))
        served.server.until(lambda: served.has("GET /callbacks", True), "the end")
        said = [each[2] for each in served.events() if each[1] == "GET /callbacks"]
        # Neither the removed ones, nor is one lost because another fails.
        assert said == ["began", "fails", "called", True]
        served.server.logged("exception in a callback of tailrace.on_disconnect")
        assert "ValueError: a callback that fails" in served.server.log


@MODES
def test_a_callback_is_called_although_its_block_is_left_by_the_exception(tmp_path, gevent):
    with Served(tmp_path, "--cancel-on-disconnect", "safe", gevent=gevent) as served:
        for _ in range(5):
            reset(served.asks("/block"))
        served.server.until(
            lambda: [each[2] for each in served.events()].count("ClientDisconnected") == 5, "the exceptions"
        )
        served.server.until(lambda: [each[2] for each in served.events()].count("called") == 5, "the callbacks")


@MODES
def test_subscriptions_that_are_over_take_no_memory(tmp_path, gevent):
    with Served(tmp_path, gevent=gevent) as served:
        client = served.asks("/many", waits=False)
        served.server.until(lambda: any(each[2] == "began" for each in served.events()), "the beginning")
        ((*_, kept),) = [each for each in served.events() if each[2] == "began"]
        assert kept < 200
        reset(client)
        served.server.until(lambda: [each[2] for each in served.events()].count("called") == 3, "the callbacks")


def test_a_process_that_a_callback_forks_ends_with_it(tmp_path):
    with Served(tmp_path) as served:
        before = set(served.server.processes())
        reset(served.asks("/forks"))
        served.server.until(lambda: any(each[2] == "forked" for each in served.events()), "the fork")
        served.server.until(lambda: set(served.server.processes()) <= before, "the end of the child")


@MODES
def test_a_callback_that_blocks_delays_no_cancellation(tmp_path, gevent):
    with Served(tmp_path, "--cancel-on-disconnect", "safe", gevent=gevent) as served:
        reset(served.asks("/blocks", method="POST"))
        served.server.until(lambda: served.has("POST /blocks", "called"), "the callback")
        reset(served.asks("/wait"))
        served.server.until(lambda: served.has("GET /wait", "ClientDisconnected", False), "the exception")
        assert not served.has("POST /blocks", "freed")
        served.server.get("/free")
        served.server.until(lambda: served.has("POST /blocks", "freed"), "the end of the callback")


@MODES
def test_a_callback_ends_with_its_request(tmp_path, gevent):
    with Served(tmp_path, gevent=gevent) as served:
        client = served.asks("/keeps", waits=False)
        assert client.recv(1 << 16).endswith(b"done")
        reset(client)
        # What comes after it is done shows that the disconnect of the idle connection was seen.
        reset(served.asks("/callbacks"))
        served.server.until(lambda: served.has("GET /callbacks", True), "the end of another request")
        assert not served.has("GET /keeps", "called")


@MODES
def test_a_client_that_has_left_before_is_noticed_by_a_late_subscription(tmp_path, gevent):
    with Served(tmp_path, gevent=gevent) as served:
        reset(served.asks("/late"))
        served.server.until(lambda: served.has("GET /late", "called"), "the callback")


@MODES
def test_half_close_is_no_disconnect_unless_asked_for(tmp_path, gevent):
    for option in ("continue", "disconnect"):
        (tmp_path / option).mkdir()
        arguments = ("--cancel-on-disconnect", "safe", "--half-close", option)
        with Served(tmp_path / option, *arguments, gevent=gevent) as served:
            with served.asks("/iterates") as client:
                client.shutdown(socket.SHUT_WR)
                if option == "disconnect":
                    served.server.until(lambda: served.has("GET /iterates", "cleaned up"), "the end")
                    assert served.has("GET /iterates", "ClientDisconnected")
                    served.server.until(lambda: "/iterates" in served.endings(), "its line in the access log")
                    assert served.endings()["/iterates"] == "cancelled"
                else:
                    received = b""
                    while received.count(b"x") < 50:
                        received += client.recv(1 << 16)
                    assert not served.has("GET /iterates", "cleaned up")
                    reset(client)
                    served.server.until(lambda: served.has("GET /iterates", "cleaned up"), "the end")


@MODES
def test_a_response_that_is_complete_is_not_cancelled(tmp_path, gevent):
    with Served(tmp_path, "--cancel-on-disconnect", "all", gevent=gevent) as served:
        client = served.asks("/rest")
        received = b""
        while not received.endswith(b"done"):
            received += client.recv(1 << 16)
        reset(client)
        served.server.until(lambda: served.has("GET /rest", "not interrupted"), "the end of what comes after it")


@MODES
def test_an_application_may_catch_it(tmp_path, gevent):
    with Served(tmp_path, "--cancel-on-disconnect", "all", gevent=gevent) as served:
        reset(served.asks("/caught"))
        served.server.until(lambda: served.has("GET /caught", "ClientDisconnected", False), "the exception")
        served.server.until(lambda: "/caught" in served.endings(), "its line in the access log")
        assert served.endings()["/caught"] == "cancelled"


@MODES
def test_a_queued_request_whose_client_has_left_never_runs(tmp_path, gevent):
    limit = ("--max-greenlets", "1") if gevent else ("--threads", "1")
    arguments = ("--cancel-on-disconnect", "safe", "--half-close", "disconnect", *limit)
    with Served(tmp_path, *arguments, gevent=gevent) as served:
        with served.asks("/late", waits=False) as first, served.asks("/wait", waits=False) as second:
            second.shutdown(socket.SHUT_WR)
            assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert second.recv(1 << 16) == b""
        assert not served.has("GET /wait", "began")
        served.server.until(lambda: "/wait" in served.endings(), "its line in the access log")
        assert served.endings()["/wait"] == "cancelled"


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
        address = served.server.address
        with socket.create_connection((address.host, address.port)) as stays:
            for number in range(400):
                leaves = [socket.create_connection((address.host, address.port)) for _ in range(3)]
                for client in leaves:
                    client.sendall(b"GET /leaves HTTP/1.1\r\nHost: test\r\n\r\n" * (1 + number % 3))
                stays.sendall(b"GET /stays HTTP/1.1\r\nHost: test\r\n\r\n")
                for client in leaves:
                    reset(client)
                received = b""
                while not received.endswith(b"done"):
                    more = stays.recv(1 << 16)
                    assert more, (received, served.server.log)
                    received += more
                assert received.startswith(b"HTTP/1.1 200"), received
        assert "interrupted /stays" not in served.server.log
        assert "Traceback" not in served.server.log


def test_a_worker_that_has_cancelled_a_request_is_replaced_at_once(tmp_path):
    """The thread that cancelled it ends with the server."""
    with Served(tmp_path, "--cancel-on-disconnect", "safe") as served:
        reset(served.asks("/wait"))
        served.server.until(lambda: served.has("GET /wait", "ClientDisconnected", False), "the exception")
        served.server.tell(signal.SIGHUP)
        served.server.logged("ready in", 2)
        served.server.logged("has ended")


def test_cancelled_requests_are_counted_by_their_own_ending(tmp_path):
    at = free_address()
    with Served(tmp_path, "--cancel-on-disconnect", "safe", "--status", at.bind) as served:
        reset(served.asks("/wait"))

        def counted():
            with urllib.request.urlopen(f"{at.url}/metrics") as answer:
                return re.search(r'tailrace_responses_ended_total\{.*ending="cancelled".*\} 1', answer.read().decode())

        served.server.until(counted, "the figure")


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
        client = served.asks("/query", waits=False)
        served.server.until(lambda: served.server.get("/running").body == b"1", "the query")
        reset(client)
        served.server.until(lambda: served.server.get("/running").body == b"0", "the end of the query")
        served.server.logged("query: QueryCanceled")


@pytest.mark.parametrize(("unix", "option"), [(False, "disconnect"), (True, "continue")], ids=["tcp", "unix"])
def test_behind_nginx_a_disconnect_is_seen(tmp_path, unix, option):
    """nginx closes its connection by a FIN, which a UNIX socket shows as closed in both directions."""
    listen, way = free_address(), tmp_path / "app.sock"
    more = ("--bind", f"unix:{way}") if unix else ()
    with Served(tmp_path, "--cancel-on-disconnect", "safe", "--half-close", option, *more) as served:
        upstream = f"unix:{way}:" if unix else served.server.address.bind
        site = f"server {{ listen {listen.bind}; location / {{ proxy_pass http://{upstream}; }} }}"
        nginx = nginx_with(site)
        with Process(need_tool(nginx.executable), *nginx.arguments, address=listen, files=nginx.files):
            with socket.create_connection((listen.host, listen.port)) as client:
                client.sendall(b"GET /wait HTTP/1.1\r\nHost: test\r\n\r\n")
                served.server.until(lambda: served.has("GET /wait", "began"), "the request")
            served.server.until(lambda: served.has("GET /wait", "ClientDisconnected", False), "the exception")


DJANGO = """
import json
import time

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
from django.db import DatabaseError, connection
from django.http import HttpResponse
from django.urls import path

ACTIVE = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"
events = []

def slow(request):
    connection.ensure_connection()
    with request.META["tailrace.on_disconnect"](connection.connection.cancel), connection.cursor() as cursor:
        try:
            cursor.execute("select pg_sleep(60)")
        except DatabaseError as error:
            events.append(type(error).__name__)
            raise
    return HttpResponse("done")

def running(request):
    with connection.cursor() as cursor:
        cursor.execute(ACTIVE)
        return HttpResponse(str(cursor.fetchone()[0]))

urlpatterns = [
    path("slow", slow),
    path("running", running),
    path("events", lambda request: HttpResponse(json.dumps(events))),
]
app = get_wsgi_application()
"""


def test_a_view_of_django_ends_with_its_query(tmp_path, postgres):
    app = DJANGO.replace("HOST,", f"{str(postgres.folder)!r},")
    with Served(tmp_path, "--cancel-on-disconnect", "safe", app=app) as served:
        client = served.asks("/slow", waits=False)
        served.server.until(lambda: served.server.get("/running").body == b"1", "the query")
        reset(client)
        served.server.until(lambda: served.server.get("/running").body == b"0", "the end of the query")
        served.server.until(lambda: "/slow" in served.endings(), "its line in the access log")
        assert served.endings()["/slow"] == "cancelled"
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
def test_a_subprocess_is_killed_when_the_client_leaves(tmp_path, gevent):
    with Served(tmp_path, gevent=gevent, app=RECIPES) as served:
        reset(served.asks("/process"))
        served.server.until(lambda: served.has("GET /process", -9), "the end of the process")


def test_greenlets_of_a_request_are_killed_when_the_client_leaves(tmp_path):
    with Served(tmp_path, gevent=True, app=RECIPES) as served:
        reset(served.asks("/greenlets"))
        served.server.until(lambda: served.has("GET /greenlets", [True] * 3), "their end")
