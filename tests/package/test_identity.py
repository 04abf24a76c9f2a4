"""User, group, pid file, title. What changes a process for good happens in a process of its own."""

import importlib.util
import os
import pwd
import stat
import subprocess
import sys
import tempfile

import pytest

from penstock import identity
from penstock.errors import ConfigError
from penstock.identity import Identity, PidFile

administrator = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator may change the user")


def run(source, *arguments):
    """What a process prints."""
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_asked_is_nobody():
    assert identity.identity(None, None) is None


def test_names_numbers_and_defaults():
    entry = pwd.getpwnam("nobody")
    whole = Identity(entry.pw_uid, entry.pw_gid, "nobody", entry.pw_dir)
    assert identity.identity("nobody", None) == whole
    assert identity.identity(str(entry.pw_uid), None) == whole
    assert identity.identity("nobody", "12").gid == 12
    assert identity.identity("nobody", "root").gid == 0
    assert identity.identity("54321", "12") == Identity(54321, 12)
    assert identity.identity(None, "12") == Identity(os.geteuid(), 12)


@pytest.mark.parametrize(
    ("user", "group", "message"),
    [
        ("absent-user", None, "there is no such user; `getent passwd`"),
        (None, "absent-group", "there is no such group; `getent group`"),
        ("54321", None, "so --group is needed too"),
    ],
)
def test_who_is_unknown_is_one_line(user, group, message):
    with pytest.raises(ConfigError, match=message):
        identity.identity(user, group)


def test_to_become_oneself_needs_no_rights():
    me = Identity(os.geteuid(), os.getegid())
    assert me.is_current
    before = os.getgroups()
    me.become()
    assert os.getgroups() == before


BECOME = """
import os
from penstock import identity
someone = identity.identity("nobody", None)
os.close(os.open("/proc/self/fd", os.O_RDONLY))
someone.become()
print(os.getresuid(), os.getresgid(), os.getgroups(), os.environ["HOME"], os.environ["USER"], someone.is_current)
try:
    os.setuid(0)
except PermissionError:
    print("for good")
someone.become()
try:
    identity.identity("root", None).become()
except Exception as error:
    print(error)
"""


@administrator
def test_the_user_changes_for_good():
    entry = pwd.getpwnam("nobody")
    changed, good, refused = run(BECOME).splitlines()
    groups = os.getgrouplist("nobody", entry.pw_gid)
    uids, gids = (entry.pw_uid,) * 3, (entry.pw_gid,) * 3
    assert changed == f"{uids} {gids} {groups} {entry.pw_dir} nobody True"
    assert good == "for good"
    assert refused == (
        "cannot become user root, group 0: only the administrator may, and this is user nobody; start as root, or "
        "leave --user and --group out (systemd: User=, Group=)"
    )


@administrator
def test_a_user_without_an_entry_keeps_no_group_of_the_administrator():
    source = (
        "import os\n"
        "from penstock import identity\n"
        "identity.identity('54321', '54322').become()\n"
        "print(os.getresuid(), os.getresgid(), os.getgroups())\n"
    )
    assert run(source) == "(54321, 54321, 54321) (54322, 54322, 54322) [54322]\n"


@administrator
def test_files_of_the_administrator_are_given_to_the_user(tmp_path):
    nobody = identity.identity("nobody", None)
    (tmp_path / "app.sock").touch()
    (tmp_path / "elsewhere").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    nobody.own([str(tmp_path / "app.sock"), str(tmp_path / "absent"), str(tmp_path / "link")])
    assert (tmp_path / "app.sock").stat().st_uid == nobody.uid
    assert (tmp_path / "elsewhere").stat().st_uid == 0, "a link is not followed"
    nobody.own_log(str(tmp_path / "access.log"))
    made = (tmp_path / "access.log").stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (nobody.uid, nobody.gid, 0o640)
    nobody.own_log(str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere").stat().st_uid == 0, "a file that was there is left alone"
    nobody.own_log("-")
    nobody.own_log(None)


@administrator
def test_a_python_that_the_user_cannot_read_is_one_line(tmp_path):
    (tmp_path / "lib").mkdir(mode=0o700)
    (tmp_path / "lib" / "os.py").touch()
    source = (
        "import os, sys\n"
        "from penstock import identity\n"
        "someone = identity.identity('54321', '54322')\n"
        "os.__file__ = sys.argv[1]\n"
        "someone.check_interpreter()\n"
        "someone.become()\n"
        "try:\n"
        "    someone.check_interpreter()\n"
        "except identity.ConfigError as error:\n"
        "    print(error)\n"
    )
    said = run(source, tmp_path / "lib" / "os.py")
    assert said.startswith(f"user 54321 cannot read Python's own modules in {tmp_path}/lib; install Python")


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
    with pytest.raises(ConfigError, match=rf"process {living.pid} runs already; stop it \(`kill {living.pid}`\)"):
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


def test_what_a_killed_server_of_the_same_number_left_beside_it_is_no_hindrance(tmp_path):
    (tmp_path / f".app.pid.{os.getpid()}").write_text("")
    file = PidFile(str(tmp_path / "app.pid"))
    file.write()
    assert [each.name for each in tmp_path.iterdir()] == ["app.pid"]


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
from penstock import identity
file = identity.PidFile(sys.argv[1])
file.write()
nobody = identity.identity("nobody", None)
nobody.own([file.path])
nobody.become()
file.write()
print(open(sys.argv[1]).read() == f"{os.getpid()}\\n")
file.remove()
print(repr(open(sys.argv[1]).read()))
try:
    identity.PidFile(sys.argv[1] + ".other").write()
except Exception as error:
    print(error)
"""


@administrator
def test_a_pid_file_in_a_directory_of_the_administrator():
    """After the change of user it can be neither replaced nor removed, but rewritten and emptied."""
    # Not pytest's own directory, which other users may not enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        rewritten, emptied, refused = run(PID_FILE, f"{directory}/app.pid").splitlines()
    assert rewritten == "True"
    assert emptied == "''"
    assert f"no permission to create a file in {directory}; choose another directory" in refused


def test_without_setproctitle_the_short_name_tells_the_role():
    source = (
        "import sys\n"
        "sys.modules['setproctitle'] = None\n"
        "from penstock import identity\n"
        "for role in ('master', 'worker 12'):\n"
        "    identity.set_title(role, 'app:app')\n"
        "    print(open('/proc/self/comm').read(), end='')\n"
    )
    assert run(source) == "penstock-master\npenstock-w12\n"


@pytest.mark.skipif(not importlib.util.find_spec("setproctitle"), reason="the extra `title` is not installed")
def test_with_setproctitle_ps_shows_role_and_application():
    source = (
        "from penstock import identity\n"
        "identity.set_title('worker 1', 'app:app')\n"
        "print(open('/proc/self/cmdline', 'rb').read().rstrip(b'\\0').decode())\n"
    )
    assert run(source) == "penstock: worker 1 [app:app]\n"
