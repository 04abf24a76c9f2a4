"""The command with greenlets: what it refuses, the order of patching and loading, and its signals."""

import os
import signal
import socket


def test_limits_of_greenlets_without_greenlets_are_said_to_have_no_effect(pong, command):
    server = command("pong", "--max-greenlets", "5", "--bind", "127.0.0.1:0")
    server.until("WARNING: --max-greenlets has no effect without --gevent: there are no greenlets$")
    server.address()


def test_an_application_that_does_not_load_is_reported_as_without_greenlets(pong, command):
    (pong / "broken.py").write_text("1 / 0\n")
    server = command("broken", "--gevent", "--bind", "127.0.0.1:0")
    assert server.end() == 3
    assert server.seen[-1].startswith("tailrace: error: ")
    assert "ZeroDivisionError" in "".join(server.seen)


def test_a_worker_whose_hub_is_blocked_drains_on_its_own_sigterm(pong, command):
    os.mkfifo(pong / "entered")
    (pong / "keeps.py").write_text(
        "import os\n"
        "def app(environ, start_response):\n"
        "    with open('entered', 'w') as file: file.write(str(os.getpid()))\n"
        "    while not os.path.exists('release'): pass\n"
        "    start_response('200 OK', [('Content-Length', '4')])\n"
        "    return [b'done']\n"
    )
    server = command("keeps", "--gevent", "--bind", "127.0.0.1:0")
    address = server.address()
    server.until("ready in")
    with socket.create_connection(address, 30) as first, socket.create_connection(address, 30) as idle:
        first.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        pid = int((pong / "entered").read_text())
        os.kill(pid, signal.SIGTERM)
        # The native side closes what is idle, while the interpreter is busy.
        assert idle.recv(100) == b""
        (pong / "release").touch()
        assert b"\r\nConnection: close\r\n" in first.recv(65536)


def test_the_end_of_a_server_is_noticed_also_when_many_signals_wait(pong, command):
    """The socket that tells signals and the end holds some hundred of them."""
    os.mkfifo(pong / "entered")
    (pong / "keeps.py").write_text(
        "import os, signal\n"
        "def app(environ, start_response):\n"
        "    for _ in range(2000): signal.raise_signal(signal.SIGHUP)\n"
        "    os.kill(os.getpid(), signal.SIGQUIT)\n"
        "    for _ in range(2000): signal.raise_signal(signal.SIGHUP)\n"
        "    return []\n"
    )
    server = command("keeps", "--gevent", "--bind", "127.0.0.1:0")
    address = server.address()
    server.until("ready in")
    with socket.create_connection(address, 30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        server.until(r"worker 1 \(pid \d+\) exited with status 0")
