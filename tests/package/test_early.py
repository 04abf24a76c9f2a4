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
@pytest.mark.parametrize(("numbers", "status"), [([signal.SIGINT], 130), (OF_A_SERVER, 7)], ids=["ctrl-c", "others"])
def test_while_the_command_is_imported_ctrl_c_ends_it_quietly_and_signals_of_a_server_do_nothing(
    tmp_path, command, numbers, status
):
    kills = f"for each in {[int(number) for number in numbers]}: os.kill(os.getpid(), each)"
    (tmp_path / "click.py").write_text(f"import os\n{kills}\nos._exit(7)\n")
    ended = run(tmp_path, *command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", "")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("module", ["signal", "threading"])
def test_nothing_that_takes_long_is_imported_before(tmp_path, command, module):
    """Fails when the handlers are set by way of a module that Python does not have at its start."""
    (tmp_path / f"{module}.py").write_text("import os\nos.kill(os.getpid(), 2)\nos.kill(os.getpid(), 1)\n")
    ended = run(tmp_path, *command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize("number", OF_A_SERVER)
@pytest.mark.parametrize("arguments", [(), ("--workers", "2"), ("--gevent",), ("--preload",)], ids=" ".join)
def test_a_signal_of_a_server_does_not_end_one_that_reads_its_settings(pong, command, number, arguments):
    if "--gevent" in arguments:
        pytest.importorskip("gevent")
    os.mkfifo(pong / "settings.toml")
    server = command("pong", "--config", "settings.toml", "--bind", "127.0.0.1:0", *arguments)
    with open(pong / "settings.toml", "w") as settings:
        server.process.send_signal(number)
        settings.write("max_queue = 64\n")
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


WORK = """
import gc
import signal

import tailrace

def look():
    signals = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGHUP)]
    assert gc.isenabled() and signals == [signal.default_int_handler, signal.SIG_DFL], signals
"""
SPAWNING = """
import multiprocessing

if __name__ == "__main__":
    import work

    child = multiprocessing.get_context("spawn").Process(target=work.look)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
"""


def test_what_a_process_spawns_is_no_command_even_if_it_has_its_arguments(tmp_path):
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "tailrace").write_text(SPAWNING)
    ended = run(tmp_path, str(tmp_path / "tailrace"))
    assert ended.returncode == 0, ended.stderr


def test_garbage_is_collected_in_a_program_with_the_name_of_the_command_and_once_the_command_is_imported(tmp_path):
    (tmp_path / "tailrace").write_text("import tailrace, gc; assert gc.isenabled()")
    for command in ([str(tmp_path / "tailrace")], ["-c", "import tailrace.command, gc; assert gc.isenabled()"]):
        ended = run(tmp_path, *command)
        assert ended.returncode == 0, ended.stderr
