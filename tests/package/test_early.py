"""Signals that come before the command handles them. Real processes, which signal themselves while they import."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

COMMANDS = [["-m", "tailrace"], [str(Path(sys.executable).with_name("tailrace"))]]
OF_A_SERVER = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


def run(directory, *command):
    environ = {**os.environ, "PYTHONPATH": str(directory)}
    return subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_the_command_is_imported_ends_it_quietly(tmp_path, command):
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    ended = run(tmp_path, *command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_signals_of_a_server_do_nothing_while_the_command_is_imported(tmp_path, command):
    numbers = [int(number) for number in OF_A_SERVER]
    (tmp_path / "click.py").write_text(f"import os\nfor each in {numbers}: os.kill(os.getpid(), each)\nos._exit(7)\n")
    ended = run(tmp_path, *command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "", "")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("module", ["signal", "threading"])
def test_nothing_that_takes_long_is_imported_before(tmp_path, command, module):
    """Fails when the handlers are set by way of a module that Python does not have at its start."""
    (tmp_path / f"{module}.py").write_text("import os\nos.kill(os.getpid(), 2)\nos.kill(os.getpid(), 1)\n")
    ended = run(tmp_path, *command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("number", OF_A_SERVER)
@pytest.mark.parametrize("arguments", [(), ("--workers", "2"), ("--gevent",), ("--preload",)], ids=" ".join)
def test_a_signal_of_a_server_does_not_end_one_that_reads_its_settings(pong, command, number, arguments):
    if "--gevent" in arguments:
        pytest.importorskip("gevent")
    os.mkfifo(pong / "settings.toml")
    server = command("pong", "--config", "settings.toml", "--bind", "127.0.0.1:0", *arguments)
    with open(pong / "settings.toml", "w") as settings:
        server.process.send_signal(number)
        settings.write("backlog = 64\n")
    host, port = server.address()
    with urllib.request.urlopen(f"http://{host}:{port}/", timeout=30) as response:
        assert response.read() == b"pong"
    server.process.terminate()
    assert server.end() == 0


def test_debug_takes_the_signal_of_log_rotation_early(pong, command):
    os.mkfifo(pong / "settings.toml")
    server = command("pong", "--config", "settings.toml", "--bind", "127.0.0.1:0", "--debug")
    with open(pong / "settings.toml", "w"):
        server.process.send_signal(signal.SIGUSR1)
    server.address()
    server.process.terminate()
    assert server.end() == 0


def test_a_command_that_does_not_serve_ends_with_its_terminal(tmp_path, command):
    os.mkfifo(tmp_path / "settings.toml")
    server = command("config", "--config", "settings.toml")
    with open(tmp_path / "settings.toml", "w"):
        server.process.send_signal(signal.SIGHUP)
        assert server.end() == -signal.SIGHUP


def test_debug_ends_with_its_terminal(tmp_path, command):
    for name in ("entered", "never"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "slow.py").write_text("open('entered', 'wb').close()\nopen('never')\n")
    server = command("slow", "--bind", "127.0.0.1:0", "--debug")
    (tmp_path / "entered").read_bytes()
    server.process.send_signal(signal.SIGHUP)
    assert server.end() == -signal.SIGHUP


@pytest.mark.parametrize("source", ["import tailrace", "import sys; sys.argv[0] = '-m'; import tailrace"])
def test_a_program_that_imports_tailrace_keeps_its_signals(tmp_path, source):
    source += (
        "; import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
        "; assert {signal.getsignal(each) for each in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)} == {0}"
    )
    ended = run(tmp_path, "-c", source)
    assert ended.returncode == 0, ended.stderr
