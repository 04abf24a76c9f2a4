"""A server of one worker: first log lines, signals, listeners of every kind. Real processes; tests wait for events."""

import os
import signal
import socket
import stat
import urllib.request
from pathlib import Path

import pytest
from package.in_flight import Request
from server.probes import eventually

# Tells the test through one FIFO that it runs, and waits on the other until the test lets it go.
HELD = """
def app(environ, start_response):
    with open("entered", "wb", buffering=0) as entered:
        entered.write(b"x")
    with open("release", "rb", buffering=0) as release:
        release.read(1)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "4")])
    return [b"done"]
"""


@pytest.fixture
def held(tmp_path: Path) -> Path:
    (tmp_path / "held.py").write_text(HELD)
    os.mkfifo(tmp_path / "entered")
    os.mkfifo(tmp_path / "release")
    return tmp_path


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read()


def read_unix(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        answer = b""
        while block := client.recv(65536):
            answer += block
        return answer


def test_the_banner_names_version_process_application_and_address(pong, command):
    server = command("pong", "--bind", "127.0.0.1:0")
    server.until(rf"tailrace \S+, process {server.process.pid}, serves pong")
    host, port = server.address()
    assert get(f"http://{host}:{port}/") == b"pong"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_request_in_flight_finish(held, command, number):
    server = command("held", "--bind", "127.0.0.1:0")
    request = Request(server.address())
    request.start()
    (held / "entered").read_bytes()
    server.process.send_signal(number)
    server.until(f"{number.name}: finishing the requests in flight, for up to 30 s")
    (held / "release").write_bytes(b"x")
    request.join(30)
    assert request.answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert request.answer.endswith(b"\r\n\r\ndone")
    assert server.end() == 0


def test_a_second_signal_stops_now(held, command):
    server = command("held", "--bind", "127.0.0.1:0")
    request = Request(server.address())
    request.start()
    (held / "entered").read_bytes()
    server.process.send_signal(signal.SIGTERM)
    server.until("SIGTERM: finishing")
    server.process.send_signal(signal.SIGINT)
    server.until("SIGINT: stopping now")
    assert server.end() == 0
    request.join(30)
    assert b"done" not in request.answer


def test_the_graceful_time_ends(held, command):
    server = command("held", "--bind", "127.0.0.1:0", "--graceful-timeout", "50ms")
    request = Request(server.address())
    request.start()
    (held / "entered").read_bytes()
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    request.join(30)
    assert b"done" not in request.answer


def test_an_idle_connection_does_not_hold_a_stop_up(pong, command):
    server = command("pong", "--bind", "127.0.0.1:0")
    with socket.create_connection(server.address(), 30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert client.recv(65536) == b""


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


def test_an_application_may_start_children_with_an_open_signal_mask(tmp_path, command):
    (tmp_path / "mask.py").write_text(
        "import subprocess\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
        "    return [subprocess.run(['grep', 'SigBlk', '/proc/self/status'], capture_output=True).stdout]\n"
    )
    server = command("mask", "--bind", "127.0.0.1:0")
    host, port = server.address()
    assert get(f"http://{host}:{port}/") == b"SigBlk:\t0000000000000000\n"


def test_sigusr1_reopens_the_access_log(pong, command):
    server = command("pong", "--bind", "127.0.0.1:0", "--access-log", "access.log")
    host, port = server.address()
    get(f"http://{host}:{port}/first")
    eventually(lambda: "GET /first" in (pong / "access.log").read_text(), "the line of the first request")
    (pong / "access.log").rename(pong / "access.log.1")
    server.process.send_signal(signal.SIGUSR1)
    server.until("SIGUSR1: access log reopened")
    get(f"http://{host}:{port}/second")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "GET /first HTTP/1.1" in (pong / "access.log.1").read_text()
    assert "GET /second HTTP/1.1" in (pong / "access.log").read_text()


def test_two_listeners_a_unix_socket_with_its_mode_and_its_end(pong, command):
    path = pong / "app.sock"
    server = command("pong", "--bind", "127.0.0.1:0", "--bind", f"unix:{path}", "--socket-mode", "600")
    server.address()
    server.until(f"listening on unix:{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_unix(str(path)).endswith(b"\r\n\r\npong")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert not path.exists()


def test_the_umask_is_the_processs(pong, command):
    server = command("pong", "--bind", "unix:app.sock", "--umask", "017")
    server.until("listening on unix:")
    assert stat.S_IMODE((pong / "app.sock").stat().st_mode) == 0o760


def test_a_descriptor_from_the_parent(pong, command):
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = command("pong", "--bind", f"fd://{opened.fileno()}", pass_fds=(opened.fileno(),))
        host, port = server.address()
        assert (host, port) == opened.getsockname()
        assert get(f"http://{host}:{port}/") == b"pong"


def test_a_busy_port_ends_with_one_line(pong, command):
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = command("pong", "--bind", f"127.0.0.1:{opened.getsockname()[1]}")
        assert server.end() == 1
    assert len(server.seen) == 1
    assert "is in use; `ss -ltnp" in server.seen[0]


def test_an_application_that_configures_logging_does_not_silence_the_server(pong, command):
    (pong / "logs.py").write_text(
        "import logging.config\n"
        "logging.config.dictConfig({'version': 1, 'root': {'handlers': []}})\n"
        "from pong import app\n"
    )
    server = command("logs", "--bind", "127.0.0.1:0")
    server.address()


def test_a_stop_while_the_application_loads(tmp_path, command):
    os.mkfifo(tmp_path / "entered")
    os.mkfifo(tmp_path / "never")
    (tmp_path / "slow.py").write_text("open('entered', 'wb').close()\nopen('never')\n")
    server = command("slow", "--bind", "unix:app.sock")
    (tmp_path / "entered").read_bytes()
    server.process.send_signal(signal.SIGINT)
    assert server.end() == 130
    assert not (tmp_path / "app.sock").exists()
    assert "Traceback" not in "".join(server.seen)
