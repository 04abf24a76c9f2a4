"""A server of one worker: first log lines, signals, listeners of every kind. Real processes; tests wait for events."""

import os
import signal
import urllib.request

from package.in_flight import Request


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read()


def test_the_banner_names_version_process_application_and_address(pong, command):
    server = command("pong", "--bind", "127.0.0.1:0")
    server.until(rf"tailrace \S+, process {server.process.pid}, serves pong")
    host, port = server.address()
    assert get(f"http://{host}:{port}/") == b"pong"


def test_a_stop_while_the_application_computes(tmp_path, command):
    """The interpreter is never given up voluntarily here; the main thread must get its turn all the same."""
    os.mkfifo(tmp_path / "entered")
    (tmp_path / "busy.py").write_text(
        "def app(environ, start_response):\n    open('entered', 'wb').close()\n    while True: pass\n"
    )
    server = command("busy", "--bind", "127.0.0.1:0", "--graceful-timeout", "0")
    Request(server.address()).start()
    (tmp_path / "entered").read_bytes()
    server.process.send_signal(signal.SIGTERM)
    server.until("SIGTERM: stopping now")
    server.until("1 request did not finish in time")
    assert server.end() == 0


def test_an_application_that_configures_logging_does_not_silence_the_server(pong, command):
    (pong / "logs.py").write_text(
        "import logging.config\n"
        "logging.config.dictConfig({'version': 1, 'root': {'handlers': []}})\n"
        "from pong import app\n"
    )
    server = command("logs", "--bind", "127.0.0.1:0")
    server.address()
