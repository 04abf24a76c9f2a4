"""User and group. Tests that change a process for good run in a process of their own."""

import logging
import os
import pwd
import stat

import pytest
from harness.programs import printed

from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.system import identity
from tailrace.system.identity import Identity

administrator = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator may change the user")


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
        ("absent-user", None, "no such user; `getent passwd`"),
        (None, "absent-group", "no such group; `getent group`"),
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
from tailrace.system import identity
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
    changed, good, refused = printed(BECOME).splitlines()
    groups = os.getgrouplist("nobody", entry.pw_gid)
    uids, gids = (entry.pw_uid,) * 3, (entry.pw_gid,) * 3
    assert changed == f"{uids} {gids} {groups} {entry.pw_dir} nobody True"
    assert good == "for good"
    assert refused == (
        "cannot become user root, group 0: only root can change users, and this is user nobody; start as root, or "
        "omit --user and --group (systemd: User=, Group=)"
    )


@administrator
def test_a_user_without_an_entry_keeps_no_group_of_the_administrator():
    source = (
        "import os\n"
        "from tailrace.system import identity\n"
        "identity.identity('54321', '54322').become()\n"
        "print(os.getresuid(), os.getresgid(), os.getgroups())\n"
    )
    assert printed(source) == "(54321, 54321, 54321) (54322, 54322, 54322) [54322]\n"


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
    for other in ("-", None, "stderr", "logging", "journal", f"syslog:{tmp_path}/socket"):
        nobody.own_log(other)
    # The server's own log is open by then, and may have lines.
    handler = log.LogHandler(str(tmp_path / "server.log"))
    handler.handle(logging.makeLogRecord({"msg": "early", "levelno": logging.INFO}))
    assert "early" in (tmp_path / "server.log").read_text()
    log.LogHandler(str(tmp_path / "elsewhere"))
    nobody.own(log.made())
    assert (tmp_path / "server.log").stat().st_uid == nobody.uid
    assert (tmp_path / "elsewhere").stat().st_uid == 0, "a file that was there is left alone"
    assert sorted(os.listdir(tmp_path)) == ["access.log", "app.sock", "elsewhere", "link", "server.log"]


@administrator
def test_a_python_that_the_user_cannot_read_is_one_line(tmp_path):
    (tmp_path / "lib").mkdir(mode=0o700)
    (tmp_path / "lib" / "os.py").touch()
    source = (
        "import os, sys\n"
        "from tailrace.system import identity\n"
        "someone = identity.identity('54321', '54322')\n"
        "os.__file__ = sys.argv[1]\n"
        "someone.check_interpreter()\n"
        "someone.become()\n"
        "try:\n"
        "    someone.check_interpreter()\n"
        "except identity.ConfigError as error:\n"
        "    print(error)\n"
    )
    said = printed(source, tmp_path / "lib" / "os.py")
    assert said.startswith(f"user 54321 cannot read Python's own modules in {tmp_path}/lib; install Python")
