"""Making and ending the core."""

import errno

import pytest
from harness.programs import tailrace

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
    ended = tailrace("poor:app", "--bind", "127.0.0.1:0", *more, cwd=tmp_path)
    assert (
        "tailrace: error: cannot start: Too many open files; raise the limit of open files (`ulimit -Hn`, LimitNOFILE= "
        "of systemd)\n"
    ) in ended.stderr
    assert ended.returncode == 1


def test_what_the_system_refuses_has_its_text_and_a_remedy_if_one_is_known():
    assert str(core.refused(OSError(errno.EPERM, "x"))) == "cannot start: x"
    assert "LimitNOFILE=" in str(core.refused(OSError(errno.EMFILE, "x")))
