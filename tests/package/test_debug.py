"""The application on the main thread. Real processes, and handlers called in this one."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import urllib.request
from pathlib import Path

import pytest
from package.in_flight import Request
from server.probes import eventually

from tailrace.system.signals import handled
from tailrace.worker.debug import MainThreadStop, run_here


def test_debug_runs_the_application_on_the_main_thread(tmp_path, command):
    (tmp_path / "main.py").write_text(
        "import threading\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
        "    name = threading.current_thread().name\n"
        "    return [f\"{name} {environ['wsgi.multithread']}\".encode()]\n"
    )
    server = command("main", "--bind", "127.0.0.1:0", "--debug")
    host, port = server.address()
    with urllib.request.urlopen(f"http://{host}:{port}/", timeout=30) as response:
        assert response.read() == b"MainThread False"
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0


def test_a_breakpoint_in_debug_talks_to_the_terminal(tmp_path, command):
    (tmp_path / "stops.py").write_text(
        "def app(environ, start_response):\n"
        "    word = 'before'\n"
        "    breakpoint()\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', str(len(word)))])\n"
        "    return [word.encode()]\n"
    )
    server = command("stops", "--bind", "127.0.0.1:0", "--debug")
    request = Request(server.address())
    request.start()
    server.process.stdin.write("word = 'changed'\ncontinue\n")
    server.process.stdin.flush()
    request.join(30)
    assert request.answer.endswith(b"\r\n\r\nchanged")


def test_ctrl_c_in_debug_is_a_stop_that_was_asked_for(pong, command):
    server = command("pong", "--bind", "127.0.0.1:0", "--debug")
    server.address()
    server.process.send_signal(signal.SIGINT)
    assert server.end() == 0
    assert any("INFO: stopped" in line for line in server.seen)


class Terminal:
    """`tailrace --debug` of an application with a breakpoint, at a terminal, with a request at the prompt."""

    def __init__(self, directory, *arguments):
        (directory / "stops.py").write_text(
            "def app(environ, start_response):\n"
            "    breakpoint()\n"
            "    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '4')])\n"
            "    return [b'done']\n"
        )
        self.ours, theirs = pty.openpty()
        # Otherwise Ctrl-C discards what the server has written and the test has not read yet.
        modes = termios.tcgetattr(theirs)
        modes[3] |= termios.NOFLSH
        termios.tcsetattr(theirs, termios.TCSANOW, modes)

        def take_terminal():
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", "stops:app", "--bind", "127.0.0.1:0", "--debug", *arguments],
            cwd=directory,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self.seen = ""

    def __enter__(self):
        host, port = self.until(r"listening on http://([\d.]+):(\d+)").groups()
        self.request = Request((host, int(port)))
        self.request.start()
        self.until(r"\(Pdb\) ")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def until(self, pattern):
        """Reads up to what matches."""
        while not (found := re.search(pattern, self.seen)):
            assert select.select([self.ours], [], [], 30)[0], self.seen
            try:
                self.seen += os.read(self.ours, 4096).decode()
            except OSError:  # the last process at this terminal has ended
                pytest.fail(f"ended with status {self.process.wait(30)} before {pattern!r}:\n{self.seen}")
        return found

    def sees(self, text):
        """Reads what comes within a moment; whether the text has come."""
        while text not in self.seen and select.select([self.ours], [], [], 0.05)[0]:
            try:
                self.seen += os.read(self.ours, 4096).decode()
            except OSError:  # the last process at this terminal has ended
                break
        return text in self.seen

    def type(self, keys):
        os.write(self.ours, keys)

    def interrupt(self):
        self.type(b"\x03")
        # Readline does not notice a signal between its prompt and its wait for a key until a line has come.
        self.type(b"\n")


def test_ctrl_c_at_the_prompt_of_the_debugger_lets_the_request_finish(tmp_path):
    with Terminal(tmp_path) as terminal:
        terminal.interrupt()
        terminal.until("SIGINT: finishing the requests in flight, for up to 20 s; a second signal stops at once")
        terminal.type(b"continue\n")
        terminal.request.join(30)
        assert terminal.request.answer.endswith(b"\r\n\r\ndone")
        terminal.until("INFO: stopped")
        assert terminal.process.wait(30) == 0


@pytest.mark.parametrize("arguments", [(), ("--reload",)])
def test_ctrl_c_twice_at_the_prompt_of_the_debugger_ends_the_server(tmp_path, arguments):
    with Terminal(tmp_path, *arguments) as terminal:
        terminal.interrupt()
        terminal.until("SIGINT: finishing the requests in flight")
        # Again and again: one at once would count as the first.
        while not terminal.sees("INFO: stopped") and terminal.process.poll() is None:
            terminal.interrupt()
        assert terminal.sees("INFO: stopped"), terminal.seen
        assert terminal.process.wait(30) == 0
        assert "Traceback" not in terminal.seen
        assert "SystemE" not in terminal.seen


def test_the_prompt_of_the_debugger_ends_with_the_graceful_time(tmp_path):
    with Terminal(tmp_path, "--graceful-timeout", "0.2") as terminal:
        terminal.interrupt()
        terminal.until("1 request did not finish in time")
        terminal.until("INFO: stopped")
        assert terminal.process.wait(30) == 0
        assert "Traceback" not in terminal.seen


def test_ctrl_c_after_the_debugger_has_continued_is_the_servers_again(tmp_path):
    with Terminal(tmp_path) as terminal:
        terminal.type(b"continue\n")
        terminal.request.join(30)
        state = Path(f"/proc/{terminal.process.pid}/stat")
        eventually(lambda: state.read_text().rpartition(") ")[2].startswith("S"), "it waits for requests")
        terminal.interrupt()
        terminal.until("INFO: stopped")
        assert terminal.process.wait(30) == 0


class Here:
    """A core that serves on the calling thread, of which a test says what it does."""

    def __init__(self):
        self.calls = []
        self.at_stop = self.at_end = lambda: None
        self.at_run = lambda: None

    def run_here(self):
        self.at_run()

    def stop(self, graceful):
        self.calls.append(graceful)
        self.at_stop()
        self.calls.append("stopped")

    def cut_requests(self):
        self.at_end()
        return []

    def stats(self):
        return {"running": 0}


def test_a_signal_that_comes_while_another_is_heeded_waits_for_that():
    """Raised in the middle of a lock's taking, SystemExit would leave it taken for ever."""
    core, signals = Here(), [signal.SIGINT, signal.SIGTERM]
    core.at_stop = lambda: signals and signal.raise_signal(signals.pop())
    stop = MainThreadStop(core, 30.0)
    with handled({signal.SIGINT: stop, signal.SIGTERM: stop}):
        try:
            with pytest.raises(SystemExit):
                signal.raise_signal(signal.SIGINT)
            assert core.calls == [30.0, "stopped", 0.0, "stopped"]
            assert stop._clock is not None
        finally:
            stop.close()


@pytest.mark.parametrize("is_quiet", [False, True])
def test_no_signal_raises_when_the_server_on_the_main_thread_has_ended(is_quiet):
    """A worker would else end with a traceback and status 1, and a server without saying that it has stopped."""
    core = Here()
    core.at_run = lambda: signal.raise_signal(signal.SIGQUIT)
    core.at_end = lambda: signal.raise_signal(signal.SIGQUIT)
    stop = MainThreadStop(core, 30.0, is_quiet=is_quiet)
    with handled({signal.SIGTERM: stop, signal.SIGQUIT: stop.stop_now}):
        run_here(core, stop)
        signal.raise_signal(signal.SIGTERM)
    assert stop.was_asked_for


def test_options_that_debug_drops_are_warnings_with_the_reason(pong, command):
    server = command(
        "pong", "--bind", "127.0.0.1:0", "--debug", "--threads", "9", "--statsd", "::1", "--max-rss", "1GiB"
    )
    server.until(
        "WARNING: --max-rss, --statsd have no effect with --debug without --reload: there is no master process$"
    )
    server.until("WARNING: --threads has no effect with --debug: requests run one at a time, on the main thread$")
    server.address()


def test_an_application_that_takes_long_to_load_is_said_to_be_loaded(pong, command):
    (pong / "slow.py").write_text(f"open('gate').read()\n{(pong / 'pong.py').read_text()}")
    os.mkfifo(pong / "gate")
    server = command("slow", "--bind", "127.0.0.1:0", "--debug")
    server.until("INFO: loading slow$")
    with (pong / "gate").open("w"):
        pass
    server.address()


def test_debug_keeps_a_pid_file(pong, command):
    server = command("pong", "--bind", "127.0.0.1:0", "--debug", "--pidfile", "pid")
    server.address()
    assert int((pong / "pid").read_text()) == server.process.pid
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert not (pong / "pid").exists()
