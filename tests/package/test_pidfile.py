"""The pid file: one master for one file. Tests that change a process for good run in a process of their own."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import pytest
from harness.programs import printed

from tailrace.errors import ConfigError
from tailrace.system import pidfile
from tailrace.system.pidfile import PidFile

administrator = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator may change the user")


def test_a_pid_file_is_written_and_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = PidFile("app.pid")
    file.check()
    file.write()
    monkeypatch.chdir("/")
    assert (tmp_path / "app.pid").read_text() == f"{os.getpid()}\n"
    assert stat.S_IMODE((tmp_path / "app.pid").stat().st_mode) == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["app.pid"]
    file.check()
    file.remove()
    assert not (tmp_path / "app.pid").exists()
    file.remove()


@pytest.fixture
def living():
    """A process that lives, and is no part of the test's own."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_living_owner_keeps_the_file(tmp_path, living):
    path = tmp_path / "app.pid"
    path.write_text(f"{living.pid}\n")
    with pytest.raises(ConfigError, match=rf"process {living.pid} is already running; stop it \(`kill {living.pid}`\)"):
        PidFile(str(path)).check()
    PidFile(str(path)).check(predecessor=living.pid)
    PidFile(str(path)).remove()
    assert path.read_text() == f"{living.pid}\n"


def test_a_number_that_was_given_again_is_stale(tmp_path, living):
    path = tmp_path / "app.pid"
    path.write_text(f"{living.pid}\n")
    long_ago = path.stat().st_mtime - 1000
    os.utime(path, (long_ago, long_ago))
    PidFile(str(path)).check()


@pytest.mark.parametrize("content", [b"", b"none\n", b"-1\n", b"0\n", b"\xff\xfe", b"4194305\n"])
def test_what_a_dead_server_left_is_replaced(tmp_path, content):
    path = tmp_path / "app.pid"
    path.write_bytes(content)
    file = PidFile(str(path))
    file.check()
    file.write()
    assert path.read_text() == f"{os.getpid()}\n"


def test_a_temporary_file_of_a_killed_server_with_the_same_number_is_replaced(tmp_path):
    (tmp_path / f".app.pid.{os.getpid()}").write_text("")
    file = PidFile(str(tmp_path / "app.pid"))
    file.write()
    assert [each.name for each in tmp_path.iterdir()] == ["app.pid"]


def test_of_servers_that_begin_at_once_one_has_the_file(tmp_path):
    source = """
import sys, time
from tailrace.errors import ConfigError
from tailrace.system import pidfile
file = pidfile.PidFile(sys.argv[1])
check = file.check
file.check = lambda: (check(), time.sleep(0.05))
sys.stdin.read()
try:
    file.claim()
except ConfigError as error:
    print("refused" if "is already running" in str(error) else error)
else:
    print("claimed", flush=True)
sys.stdin.close()
time.sleep(60)
"""
    reader, writer = os.pipe()
    arguments = [sys.executable, "-c", source, str(tmp_path / "app.pid")]
    started = [subprocess.Popen(arguments, stdin=reader, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    os.close(reader)
    os.close(writer)
    with ExitStack() as stack:
        for each in started:
            stack.enter_context(each)
            stack.callback(each.kill)
        assert sorted(each.stdout.readline() for each in started) == ["claimed\n"] + ["refused\n"] * 5


def test_a_directory_that_another_program_has_locked_does_not_prevent_a_start(tmp_path, monkeypatch):
    monkeypatch.setattr(pidfile, "_MAX_LOCK_WAIT", 0.0)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        PidFile(str(tmp_path / "app.pid")).claim()
    finally:
        os.close(directory)
    assert (tmp_path / "app.pid").read_text() == f"{os.getpid()}\n"


def test_a_full_disk_leaves_no_temporary_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        PidFile(str(tmp_path / "app.pid")).claim()
    assert list(tmp_path.iterdir()) == []


def test_a_dead_and_unreaped_owner_is_none(tmp_path):
    path = tmp_path / "app.pid"
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        path.write_text(f"{process.pid}\n")
        PidFile(str(path)).check()


def test_a_forked_child_leaves_the_file(tmp_path):
    file = PidFile(str(tmp_path / "app.pid"))
    file.write()
    child = os.fork()
    if child == 0:
        file.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "app.pid").exists()


def test_a_directory_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"pidfile .*: the directory .*/absent does not exist; create it"):
        PidFile(str(tmp_path / "absent" / "app.pid")).write()


PID_FILE = """
import os, sys
from tailrace.system import identity, pidfile
file = pidfile.PidFile(sys.argv[1])
file.write()
nobody = identity.identity("nobody", None)
nobody.own([file.path])
nobody.become()
file.write()
print(open(sys.argv[1]).read() == f"{os.getpid()}\\n")
file.remove()
print(repr(open(sys.argv[1]).read()))
try:
    pidfile.PidFile(sys.argv[1] + ".other").write()
except Exception as error:
    print(error)
"""


@administrator
def test_a_directory_that_takes_no_files_is_not_called_absent():
    with pytest.raises(ConfigError) as caught:
        PidFile("/proc/self/x").write()
    assert str(caught.value) == (
        "--pidfile /proc/self/x: the file system of /proc/self does not accept new files; choose another directory"
    )


def test_a_pid_file_in_a_directory_of_the_administrator():
    """After the change of user it can be neither replaced nor removed, but rewritten and emptied."""
    # Not pytest's own directory, which other users may not enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        rewritten, emptied, refused = printed(PID_FILE, f"{directory}/app.pid").splitlines()
    assert rewritten == "True"
    assert emptied == "''"
    assert f"no permission to create a file in {directory}; choose another directory" in refused
