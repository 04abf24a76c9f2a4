import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

import penstock


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
    with penstock.serve_in_thread(named("one")) as url:
        assert url.startswith("http://127.0.0.1:")
        assert get(url).startswith("one penstock-")
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]
        assert threads
    with pytest.raises(OSError, match="refused"):
        get(url)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_several_servers_at_once():
    with penstock.serve_in_thread(named("one")) as first, penstock.serve_in_thread(named("two"), threads=1) as second:
        assert first != second
        assert get(first).startswith("one ")
        assert get(second).startswith("two ")


def test_a_server_in_a_thread_ends_when_its_block_raises():
    with pytest.raises(LookupError), penstock.serve_in_thread(named("one")) as url:
        raise LookupError
    with pytest.raises(OSError, match="refused"):
        get(url)


def test_the_address_can_be_chosen(tmp_path):
    with penstock.serve_in_thread(named("one"), bind=f"unix:{tmp_path}/app.sock") as url:
        assert url == f"unix:{tmp_path}/app.sock"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{tmp_path}/app.sock")
    assert not (tmp_path / "app.sock").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": 3}, r"unknown option 'thread'; did you mean threads\?"),
        ({"threads": 0}, r"threads = 0: must be at least 1"),
        ({"app": "x:y"}, "unknown option 'app'|multiple values"),
        ({"debug": True}, "needs the main thread"),
        ({"gevent": True}, r"too late to patch it; .* penstock\.gevent\.serve"),
        ({"max_greenlets": 5}, r"penstock\.gevent\.serve"),
        ({"access_log_format": "{clinet}", "access_log": os.devnull}, "clinet"),
    ],
)
def test_wrong_options_are_errors(options, message):
    with (
        pytest.raises((penstock.ConfigError, TypeError), match=message),
        penstock.serve_in_thread(named("x"), **options),
    ):
        pytest.fail("not reached")


def test_what_is_no_application_is_refused():
    with pytest.raises(penstock.LoadError, match="not callable"), penstock.serve_in_thread("text"):
        pytest.fail("not reached")
    with pytest.raises(penstock.LoadError, match="not callable"):
        penstock.run(None)


def test_run_names_the_way_to_greenlets():
    with pytest.raises(penstock.ConfigError, match=r"penstock\.gevent\.serve"):
        penstock.run(named("x"), gevent="yes")


def test_the_programs_loggers_are_left_alone():
    logger = logging.getLogger("penstock")
    with penstock.serve_in_thread(named("one")) as url:
        get(url)
    assert not logger.handlers
    assert logger.propagate
    assert logger.level == logging.NOTSET


def test_run_serves_until_a_signal_and_gives_the_handlers_back(tmp_path):
    (tmp_path / "program.py").write_text(
        "import logging, signal, sys, penstock\n"
        "logging.basicConfig(level='INFO', format='%(message)s')\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '4')])\n"
        "    return [b'pong']\n"
        "before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)\n"
        "penstock.run(app, bind='127.0.0.1:0', threads=2)\n"
        "assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before\n"
        "assert signal.set_wakeup_fd(-1) == -1\n"
        "sys.exit(7)\n"
    )
    program = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with program:
        url = next(line.split()[-1] for line in program.stderr if line.startswith("listening on "))
        assert get(url) == "pong"
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 7


def test_run_on_another_thread_leaves_signals_alone(tmp_path):
    """Without handlers of its own the program ends by the signal's default action."""
    (tmp_path / "program.py").write_text(
        "import logging, threading, penstock\n"
        "logging.basicConfig(level='INFO', format='%(message)s')\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '4')])\n"
        "    return [b'pong']\n"
        "thread = threading.Thread(target=penstock.run, args=(app,), kwargs={'bind': '127.0.0.1:0'})\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    program = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with program:
        url = next(line.split()[-1] for line in program.stderr if line.startswith("listening on "))
        assert get(url) == "pong"
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == -signal.SIGTERM
