"""`tailrace.run` and `tailrace.serve_in_thread`."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
from harness.addresses import free_address

import tailrace


def named(name):
    def app(environ, start_response):
        body = f"{name} {threading.current_thread().name}".encode()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    return app


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def test_a_server_in_a_thread_serves_and_ends():
    with tailrace.serve_in_thread(named("one")) as server:
        assert isinstance(server, tailrace.Server)
        assert server.url == "http://{}:{}".format(*server.address)
        assert repr(server) == f"<tailrace.Server, url={server.url!r}>"
        assert get(server.url).startswith("one tailrace-")
        assert server.stats()["requests"] == 1
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("tailrace-")]
        assert threads
    with pytest.raises(OSError, match="refused"):
        get(server.url)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_several_servers_at_once():
    with tailrace.serve_in_thread(named("one")) as first, tailrace.serve_in_thread(named("two"), threads=1) as second:
        assert first.address != second.address
        assert get(first.url).startswith("one ")
        assert get(second.url).startswith("two ")


def test_a_server_in_a_thread_accepts_publications_at_their_own_address(tmp_path):
    def app(environ, start_response):
        fields = tailrace.hold("news") if environ["PATH_INFO"] == "/stream" else {}
        start_response("200 OK", [("Content-Type", "text/event-stream"), *fields.items()])
        return [b": open\n\n"]

    place = f"unix:{tmp_path}/publish"
    with (
        tailrace.serve_in_thread(app, publish_bind=place) as server,
        urllib.request.urlopen(f"{server.url}/stream", timeout=30) as stream,
    ):
        assert stream.read(8) == b": open\n\n"
        tailrace.publish("news", "first", id="1", to=place)
        assert stream.read(19) == b"id: 1\ndata: first\n\n"


def test_libraries_publish_at_the_server_that_runs(monkeypatch):
    monkeypatch.delenv("GRIP_URL", raising=False)
    for _ in range(2):
        place = free_address()
        with tailrace.serve_in_thread(named("one"), publish_bind=place.bind):
            assert os.environ["GRIP_URL"].startswith(f"http://{place.bind}/?key=")
        assert "GRIP_URL" not in os.environ
    monkeypatch.setenv("GRIP_URL", "http://pushpin:5561")
    with tailrace.serve_in_thread(named("one"), publish_bind=free_address().bind):
        pass
    assert os.environ["GRIP_URL"] == "http://pushpin:5561"


def test_a_server_in_a_thread_ends_when_its_block_raises():
    with pytest.raises(LookupError), tailrace.serve_in_thread(named("one")) as server:
        raise LookupError
    with pytest.raises(OSError, match="refused"):
        get(server.url)


def test_a_server_in_a_thread_can_be_stopped_before_its_block_ends():
    with tailrace.serve_in_thread(named("one")) as server:
        server.stop()
        with pytest.raises(OSError, match="refused"):
            get(server.url)
        server.stop(0)


def test_a_request_can_stop_its_own_server():
    """It is not cut off for waiting for itself."""

    def app(environ, start_response):
        server.stop()
        return named("one")(environ, start_response)

    with tailrace.serve_in_thread(app, graceful_timeout=5) as server:
        assert get(server.url).startswith("one ")
        server.stop()
        with pytest.raises(OSError, match="refused"):
            get(server.url)


def test_the_address_can_be_chosen(tmp_path):
    with tailrace.serve_in_thread(named("one"), bind=f"unix:{tmp_path}/app.sock") as server:
        assert (server.url, server.address) == (f"unix:{tmp_path}/app.sock", f"{tmp_path}/app.sock")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{tmp_path}/app.sock")
    assert not (tmp_path / "app.sock").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": 3}, r"unknown option 'thread'; did you mean threads\?"),
        ({"threads": 0}, r"threads = 0: must be at least 1"),
        ({"app": "x:y"}, "multiple values"),
        ({"pidfile": "x"}, "does not take 'pidfile': it affects the whole process, which the caller sets up"),
        ({"debug": True}, "needs the main thread"),
        ({"gevent": True}, r"too late to patch the standard library; .* tailrace\.gevent\.serve"),
        ({"max_greenlets": 5}, r"tailrace\.gevent\.serve"),
        ({"access_log_format": "{clinet}", "access_log": os.devnull}, "clinet"),
    ],
)
def test_wrong_options_are_errors(options, message):
    with (
        pytest.raises((tailrace.ConfigError, TypeError), match=message),
        tailrace.serve_in_thread(named("x"), **options),
    ):
        pytest.fail("not reached")


def test_what_is_no_application_is_refused():
    with pytest.raises(tailrace.LoadError, match="not callable"), tailrace.serve_in_thread("text"):
        pytest.fail("not reached")
    with pytest.raises(tailrace.LoadError, match="not callable"):
        tailrace.run(None)


def test_run_names_the_way_to_greenlets():
    with pytest.raises(tailrace.ConfigError, match=r"tailrace\.gevent\.serve"):
        tailrace.run(named("x"), gevent="yes")


def test_the_programs_loggers_are_left_alone():
    logger = logging.getLogger("tailrace")
    with tailrace.serve_in_thread(named("one")) as server:
        get(server.url)
    assert not logger.handlers
    assert logger.propagate
    assert logger.level == logging.NOTSET


def test_a_server_in_a_thread_says_where_it_listens(caplog):
    caplog.set_level("INFO", "tailrace")
    with tailrace.serve_in_thread(named("one")) as server:
        assert f"listening on {server.url}" in caplog.messages


PONG = (
    "import logging, tailrace\n"
    "def app(environ, start_response):\n"
    "    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '4')])\n"
    "    return [b'pong']\n"
)


def end(program, source, status=0):
    """Runs a program until it serves, and ends it; what it wrote to standard error."""
    source = PONG + source
    with subprocess.Popen([sys.executable, "-c", source], cwd=program, stderr=subprocess.PIPE, text=True) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if "listening on " in line:
                assert get(line.split()[-1]) == "pong"
                process.send_signal(signal.SIGTERM)
        assert process.wait(30) == status
    return "".join(said)


def test_run_shows_its_log_where_no_logging_is_set_up(tmp_path):
    said = end(
        tmp_path,
        "tailrace.run(app, bind='127.0.0.1:0')\n"
        "logger = logging.getLogger('tailrace')\n"
        "assert not logger.handlers and logger.propagate and not logger.level\n",
    )
    assert "] INFO: listening on http://127.0.0.1:" in said
    assert said.endswith("INFO: stopped\n")


def test_the_level_of_the_log_is_the_programs_unless_run_is_told_one(tmp_path):
    setup = "logging.basicConfig(level='WARNING', format='%(name)s: %(message)s')\n"
    said = end(tmp_path, setup + "tailrace.run(app, bind='127.0.0.1:0', log_level='info')\n")
    assert said.startswith("tailrace: tailrace ")
    assert "INFO" not in said


def test_run_takes_a_pid_file_and_a_user(tmp_path):
    said = end(
        tmp_path,
        "import os\n"
        "import tailrace.worker.single\n"
        "announce = tailrace.worker.single.announce\n"
        "def told(*given, **named):\n"
        "    assert int(open('pid').read()) == os.getpid()\n"
        "    announce(*given, **named)\n"
        "tailrace.worker.single.announce = told\n"
        "tailrace.run(app, bind='127.0.0.1:0', pidfile='pid', user=str(os.getuid()))\n"
        "assert not os.path.exists('pid')\n",
    )
    assert "stopped" in said


def test_run_has_a_worker_process_for_hooks(tmp_path):
    (tmp_path / "turns.py").write_text("def post_fork(worker): print('forked', worker.number, flush=True)\n")
    said = end(
        tmp_path, "import sys; sys.stdout = sys.stderr\ntailrace.run(app, bind='127.0.0.1:0', hooks='turns.py')\n"
    )
    assert "forked 1\n" in said
    assert "with 1 worker" in said


LOGGING = "logging.basicConfig(level='INFO', format='%(message)s')\n"


def test_run_serves_until_a_signal_and_gives_the_handlers_back(tmp_path):
    end(
        tmp_path,
        LOGGING + "import signal, sys\n"
        "before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)\n"
        "tailrace.run(app, bind='127.0.0.1:0', threads=2)\n"
        "assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before\n"
        "assert signal.set_wakeup_fd(-1) == -1\n"
        "sys.exit(7)\n",
        status=7,
    )


def test_run_on_another_thread_leaves_signals_alone(tmp_path):
    """Without handlers of its own the program ends by the signal's default action."""
    end(
        tmp_path,
        LOGGING + "import threading\n"
        "thread = threading.Thread(target=tailrace.run, args=(app,), kwargs={'bind': '127.0.0.1:0'})\n"
        "thread.start()\n"
        "thread.join()\n",
        status=-signal.SIGTERM,
    )


def test_a_child_that_the_program_forks_tells_nothing_of_the_servers_end(tmp_path):
    (tmp_path / "program.py").write_text(
        "import logging, os, socket, threading, tailrace\n"
        "from tailrace.worker import core\n"
        "logging.basicConfig(format='%(message)s')\n"
        "is_there = threading.Event()\n"
        "def app(environ, start_response):\n"
        "    is_there.set()\n"
        "    threading.Event().wait()\n"
        "def abandoned(server, in_parent=core.abandoned):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        os._exit(server.join() and in_parent(server) + len(server.cut_requests()))\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)\n"
        "    in_parent(server)\n"
        "    os._exit(0)\n"
        "core.abandoned = abandoned\n"
        "with tailrace.serve_in_thread(app, graceful_timeout=0) as server:\n"
        "    client = socket.create_connection(server.address)\n"
        "    client.sendall(b'GET /here HTTP/1.0\\r\\n\\r\\n')\n"
        "    is_there.wait()\n"
    )
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "0\n"), ended.stderr
    assert ended.stderr.count("did not finish in time") == 1, ended.stderr
