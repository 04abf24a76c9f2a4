"""`tailrace.gevent`: a server on the hub of a program. Each test has a thread with a hub of its own."""

import functools
import gc
import logging
import os
import threading
import weakref

import gevent
import gevent.event
import gevent.socket
import pytest
from harness.programs import python

import tailrace.gevent
from tailrace.errors import BindError, ConfigError, LoadError


def on_a_hub(test):
    """Runs a test on a thread with a hub, which then has nothing left to wait for."""

    @functools.wraps(test)
    def run(*arguments, **fixtures):
        failed = []

        def body():
            try:
                with gevent.Timeout(60):
                    test(*arguments, **fixtures)
                assert gevent.get_hub().join(30), "something still keeps the hub"
            except BaseException as error:
                failed.append(error)
            finally:
                gevent.get_hub().destroy(destroy_loop=True)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(100)
        if failed:
            raise failed[0]

    return run


def get(server, path="/"):
    """The whole answer, with the hub running meanwhile."""
    with gevent.socket.create_connection(server.address, 30) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while block := client.recv(65536):
            answer += block
    return answer


def pong(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
    return [b"pong"]


@on_a_hub
def test_it_serves_while_the_hub_runs():
    server = tailrace.gevent.serve(pong)
    host, port = server.address
    assert server.url == f"http://{host}:{port}"
    assert server.started
    assert not server.closed
    assert get(server).endswith(b"\r\n\r\npong")
    assert server.stats()["requests"] == 1
    assert server.stats()["greenlets_made"] == 1
    server.stop()
    assert server.closed
    assert not server.started
    with pytest.raises(OSError, match="refused"):
        get(server)


@on_a_hub
def test_it_can_be_stopped_from_another_thread():
    server = tailrace.gevent.serve(pong)
    gevent.get_hub().threadpool.apply(server.stop)
    assert server.closed
    gevent.get_hub().threadpool.kill()


@on_a_hub
def test_serve_forever_ends_with_the_exception_that_ends_the_wait():
    server = tailrace.gevent.Server(pong)
    with gevent.Timeout(0.05), pytest.raises(gevent.Timeout):
        server.serve_forever()
    assert server.closed


@on_a_hub
def test_it_starts_once():
    with tailrace.gevent.Server(pong) as server, pytest.raises(RuntimeError, match="create another one"):
        server.start()
    with pytest.raises(RuntimeError, match="create another one"):
        server.start()
    server.stop()


def serve_once():
    """A server that has served and ended, only weakly."""
    with tailrace.gevent.serve(pong) as server:
        get(server)
    return weakref.ref(server)


@on_a_hub
def test_an_ended_server_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        assert serve_once()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_greenlet": 3}, ConfigError, r"unknown option 'max_greenlet'; did you mean max_greenlets\?"),
        ({"max_greenlets": 0}, ConfigError, "max_greenlets = 0: must be at least 1"),
        ({"threads": 3}, ConfigError, "does not take 'threads': "),
        ({"bind": "nowhere"}, ConfigError, "nowhere:8000"),
        ({"bind": "unix:/nonexistent/app.sock"}, BindError, "does not exist"),
        ({"access_log": os.devnull, "access_log_format": "{clinet}"}, ConfigError, "clinet"),
        # Those of a process.
        *(
            ({option: 1}, ConfigError, option)
            for option in ("workers", "debug", "preload", "umask", "gevent", "nonsense", "reload")
        ),
    ],
)
@on_a_hub
def test_wrong_options_are_errors(options, error, message):
    with pytest.raises(error, match=message):
        tailrace.gevent.serve(pong, **options)


@on_a_hub
def test_what_is_no_application_is_refused():
    with pytest.raises(LoadError, match="not callable"):
        tailrace.gevent.serve("text")


@on_a_hub
def test_the_programs_loggers_are_left_alone():
    with tailrace.gevent.Server(pong) as server:
        get(server)
    assert not logging.getLogger("tailrace").handlers


def test_a_forked_process_has_no_server_and_the_program_keeps_its_own(tmp_path):
    ended = python(
        "import os, sys, warnings, gevent, gevent.socket, tailrace.gevent\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # of a fork beside other threads\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Length', '4')])\n"
        "    return [b'pong']\n"
        "server = tailrace.gevent.serve(app, bind='unix:app.sock')\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    server.stop()\n"
        "    server.serve_forever()\n"
        "    sys.exit(server.closed)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "with gevent.socket.socket(gevent.socket.AF_UNIX) as client:\n"
        "    client.connect('app.sock')\n"
        "    client.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "    print(client.recv(1000)[-4:], server.closed)\n"
        "server.stop()\n",
        directory=tmp_path,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\nb'pong' False\n", "")


def test_the_end_of_a_server_does_not_wait_in_the_hub_for_a_log_that_a_greenlet_holds(tmp_path):
    ended = python(
        "import gevent.monkey\n"
        "gevent.monkey.patch_all()\n"
        "import logging, socket, sys, gevent, gevent.event, tailrace.gevent\n"
        "asked, held, gate = gevent.event.Event(), gevent.event.Event(), gevent.event.Event()\n"
        "class Slow(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        if record.name == 'program':\n"
        "            held.set()\n"
        "            gate.wait()\n"
        "        elif record.levelname == 'WARNING':\n"
        "            print(record.getMessage(), flush=True)\n"
        "logging.basicConfig(handlers=[Slow()])\n"
        "def app(environ, start_response):\n"
        "    asked.set()\n"
        "    gevent.sleep(1000)\n"
        "server = tailrace.gevent.serve(app)\n"
        "client = socket.create_connection(server.address)\n"
        "client.sendall(b'GET /here HTTP/1.0\\r\\n\\r\\n')\n"
        "asked.wait()\n"
        "gevent.spawn(logging.getLogger('program').warning, 'held')\n"
        "held.wait()\n"
        "stopping = gevent.spawn(server.stop, 0)\n"
        "client.recv(1000)\n"
        "gevent.spawn_later(0.2, gate.set)\n"
        "print(stopping.join(20), server.closed, flush=True)\n",
        directory=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    assert said[0].startswith("1 request did not finish in time: GET /here"), ended
    assert said[1] == "None True"


def test_ctrl_c_while_a_request_computes_reaches_the_program(tmp_path):
    ended = python(
        "import os, signal, gevent, gevent.socket, tailrace.gevent\n"
        "def app(environ, start_response):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    while True: pass\n"
        "with tailrace.gevent.serve(app) as server:\n"
        "    client = gevent.socket.create_connection(server.address)\n"
        "    client.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "    try:\n"
        "        gevent.sleep(1000)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', client.recv(1000)[9:12])\n",
        directory=tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (0, "interrupted b'500'\n"), ended.stderr


def test_without_gevent_the_import_names_the_remedy():
    source = (
        "import sys\n"
        "sys.modules['gevent'] = None\n"
        "try:\n"
        "    import tailrace.gevent\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    said = python(source)
    assert said.stdout.startswith("tailrace.gevent needs gevent: ")
    assert said.stdout.endswith("; `pip install 'tailrace[gevent]'`\n")
