"""The command with greenlets: what it refuses, the order of patching and loading, and its signals."""

import os
import signal
import socket
import urllib.request

import pytest


@pytest.fixture
def pong(tmp_path):
    (tmp_path / "pong.py").write_text(
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '4')])\n"
        "    return [b'pong']\n"
    )
    return tmp_path


@pytest.mark.parametrize("other", ["--debug", "--preload"])
def test_what_cannot_go_together_ends_with_one_line(pong, command, other):
    server = command("pong", "--gevent", other, "--bind", "127.0.0.1:0")
    assert server.end() == 2
    [line] = server.seen
    assert line.startswith(f"tailrace: error: {other} ")
    assert line.endswith("; remove one\n")


def test_an_application_that_patches_itself_gets_an_error_with_the_remedy(pong, command):
    (pong / "patches.py").write_text("import gevent.monkey\ngevent.monkey.patch_all()\nfrom pong import app\n")
    server = command("patches", "--bind", "127.0.0.1:0")
    assert server.end() == 2
    assert server.seen[-1] == (
        "tailrace: error: the standard library is patched for gevent, so the server's threads would be greenlets "
        "and would never run; start with --gevent, or call tailrace.gevent.serve in your own program\n"
    )


def test_limits_of_greenlets_without_greenlets_are_said_to_have_no_effect(pong, command):
    server = command("pong", "--max-greenlets", "5", "--bind", "127.0.0.1:0")
    server.until("WARNING: --max-greenlets has no effect without --gevent: there are no greenlets$")
    server.address()


def test_the_signal_for_greenlets_does_no_harm_without_them(pong, command):
    server = command("pong", "--bind", "127.0.0.1:0")
    server.until("ready in")
    server.process.send_signal(signal.SIGURG)
    server.until("SIGURG: ignored, since only --gevent has greenlets whose stacks can be logged")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0


def test_the_worker_is_patched_before_its_hooks_and_its_application_and_the_master_never(pong, command, monkeypatch):
    monkeypatch.delenv("GEVENT_LOOP", raising=False)
    (pong / "seen.py").write_text(
        "import sys, time\n"
        "def state():\n"
        "    loaded = 'gevent' in sys.modules\n"
        "    return loaded and time.sleep is sys.modules['gevent'].sleep\n"
        "def loop():\n"
        "    import gevent\n"
        "    return type(gevent.get_hub().loop).__module__\n"
    )
    (pong / "hooked.py").write_text(
        "import sys, seen\n"
        "def on_start(): print('on_start', seen.state(), file=sys.stderr)\n"
        "def post_fork(worker): print('post_fork', seen.state(), seen.loop(), file=sys.stderr)\n"
        "def on_exit(): print('on_exit', seen.state(), file=sys.stderr)\n"
    )
    (pong / "patched.py").write_text(
        "import sys, seen\nprint('import', seen.state(), file=sys.stderr)\nfrom pong import app\n"
    )
    (pong / "variables.env").write_text("GEVENT_LOOP=libev-cffi\n")
    server = command("patched", "--gevent", "--hooks", "hooked", "--env-file", "variables.env", "--bind", "127.0.0.1:0")
    server.until("ready in")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    said = [line for line in server.seen if "tailrace[" not in line]
    assert said == [
        "on_start False\n",
        "post_fork True gevent.libev.corecffi\n",
        "import True\n",
        "on_exit False\n",
    ]


def test_it_serves_logs_the_stacks_of_its_greenlets_and_ends(pong, command):
    server = command("pong", "--gevent", "--bind", "127.0.0.1:0")
    server.until(r"serves pong with 1 worker on gevent$")
    host, port = server.address()
    server.until("ready in")
    with urllib.request.urlopen(f"http://{host}:{port}/", timeout=30) as response:
        assert response.read() == b"pong"
    server.process.send_signal(signal.SIGURG)
    server.until(r"WARNING: greenlets: 0 in requests, 0 of the application, \d parked; 0 requests wait; hub on thread ")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0


def test_an_application_that_does_not_load_is_reported_as_without_greenlets(pong, command):
    (pong / "broken.py").write_text("1 / 0\n")
    server = command("broken", "--gevent", "--bind", "127.0.0.1:0")
    assert server.end() == 3
    assert server.seen[-1].startswith("tailrace: error: ")
    assert "ZeroDivisionError" in "".join(server.seen)


def test_a_thread_of_the_application_is_waited_for(pong, command):
    (pong / "threads.py").write_text(
        "import os, threading, time\n"
        "from pong import app as pong\n"
        "def work():\n"
        "    while not os.path.exists('release'): time.sleep(0.01)\n"
        "    print('work done', flush=True)\n"
        "def app(environ, start_response):\n"
        "    threading.Thread(target=work, name='worker', daemon=False).start()\n"
        "    return pong(environ, start_response)\n"
    )
    server = command("threads:app", "--gevent", "--bind", "127.0.0.1:0")
    host, port = server.address()
    server.until("ready in")
    with urllib.request.urlopen(f"http://{host}:{port}/", timeout=30) as response:
        assert response.read() == b"pong"
    server.process.send_signal(signal.SIGTERM)
    server.until("waiting for threads of the application: worker$")
    (pong / "release").touch()
    assert server.end() == 0
    assert server.process.stdout.read() == "work done\n"


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
    server = command("keeps", "--gevent", "--hub-warn", "0", "--bind", "127.0.0.1:0")
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
