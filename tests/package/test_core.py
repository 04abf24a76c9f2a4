"""Making and ending the core."""

import errno
import subprocess
import sys

import pytest

from tailrace.errors import ServerError
from tailrace.worker import core


def test_an_internal_error_that_ended_the_server_is_raised():
    class Core:
        def __init__(self, fault):
            self.fault = lambda: fault

    core.check(Core(None))
    with pytest.raises(ServerError, match=r"please report it: a server thread panicked: here \(reactor.rs:7\)"):
        core.check(Core("a server thread panicked: here (reactor.rs:7)"))


# The limit is reached once the application has been loaded.
POOR = """
import os, resource
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))

def app(environ, start_response):
    raise AssertionError
"""


@pytest.mark.parametrize("more", [(), ("--debug",)], ids=["worker", "debug"])
def test_what_the_system_refuses_ends_the_start_with_the_remedy_and_status_1(tmp_path, more):
    (tmp_path / "poor.py").write_text(POOR)
    command = [sys.executable, "-m", "tailrace", "poor:app", "--bind", "127.0.0.1:0", *more]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (
        "tailrace: error: cannot start: Too many open files; raise the limit of open files (`ulimit -Hn`, LimitNOFILE= "
        "of systemd)\n"
    ) in ended.stderr
    assert ended.returncode == 1


def test_a_log_that_cannot_be_opened_is_a_mistake_in_the_settings(tmp_path):
    (tmp_path / "small.py").write_text("def app(environ, start_response): ...\n")
    command = [sys.executable, "-m", "tailrace", "small:app", "--bind", "127.0.0.1:0", "--access-log", "missing/log"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert f"--access-log {tmp_path}/missing/log: the directory {tmp_path}/missing does not exist" in ended.stderr
    assert ended.returncode == 2


def test_what_the_system_refuses_has_its_text_and_a_remedy_if_one_is_known():
    assert str(core.refused(OSError(errno.EPERM, "x"))) == "cannot start: x"
    assert "LimitNOFILE=" in str(core.refused(OSError(errno.EMFILE, "x")))
