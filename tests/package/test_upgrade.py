"""Upgrades between two masters: what the one passes to the other. tests/server has those of whole servers."""

import json
import os
import select
import signal
import socket
import sys

import pytest

from tailrace.errors import UpgradeError
from tailrace.master import upgrade
from tailrace.master.upgrade import Origin, Predecessor, Successor
from tailrace.system import sockets
from tailrace.system.binds import Bind


def test_sockets_of_systemd_go_along():
    variables = {"LISTEN_PID": str(os.getppid()), "LISTEN_FDS": "1", "WATCHDOG_PID": str(os.getppid())}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.set_inheritable(theirs.fileno(), True)
        state = {"master": os.getppid(), "line": os.dup(theirs.fileno()), "listeners": []}
        environ = {**variables, upgrade.VARIABLE: json.dumps(state)}
        found = upgrade.predecessor(environ)
        assert found.pid == os.getppid()
        assert not os.get_inheritable(found.line.fileno())
        found.ready()
        assert ours.recv(10) == b"R"
        found.close()
    assert environ == {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "WATCHDOG_PID": str(os.getpid())}


@pytest.mark.parametrize(
    "state",
    [
        "",
        "{}",
        "null",
        "nonsense",
        "[" * 100_000,
        '{"master": 1, "line": 0, "listeners": []}',
        '{"master": [], "line": 0}',
        '{"master": Infinity}',
        '{"master": 1, "line": 1e30, "listeners": []}',
        '{"master": 1, "line": 0, "listeners": [], "stderr": null}',
        '{"master": 1, "line": 0, "listeners": [], "variables": 1000000}',
    ],
)
def test_a_variable_that_is_not_for_us_is_dropped(state):
    environ = {upgrade.VARIABLE: state, "LISTEN_PID": "1"}
    assert upgrade.predecessor(environ) is None
    assert environ == {"LISTEN_PID": "1"}


def test_a_master_whose_predecessor_has_died_meanwhile_keeps_the_sockets():
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener, theirs:
        kept = os.dup(listener.fileno())
        # No process has this number.
        state = {"master": 2**22 + 1, "line": os.dup(theirs.fileno()), "listeners": [["127.0.0.1:1", kept]]}
        ours.close()
        found = upgrade.predecessor({upgrade.VARIABLE: json.dumps(state)})
        assert found.listener("127.0.0.1:1") == kept
        assert found.has_let_go()
        found.close()
        os.close(kept)


@pytest.mark.parametrize("what", ["a file", "a socket that does not listen", "closed"])
def test_numbers_that_are_no_listening_sockets_are_not_believed(what, tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs, open(tmp_path / "file", "w") as file:
        number = {"a file": file.fileno(), "a socket that does not listen": theirs.fileno(), "closed": 1 << 20}[what]
        state = {"master": os.getppid(), "line": theirs.fileno(), "listeners": [["127.0.0.1:1", number]]}
        assert upgrade.predecessor({upgrade.VARIABLE: json.dumps(state)}) is None
        ours.send(b"still open")
        assert theirs.recv(20) == b"still open"


def test_a_line_that_is_another_socket_is_not_believed():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        state = {"master": os.getppid(), "line": listener.fileno(), "listeners": []}
        assert upgrade.predecessor({upgrade.VARIABLE: json.dumps(state)}) is None
        assert listener.getsockname()[1]


@pytest.fixture
def line():
    """The two ends of a line, and the two of a standard error."""
    ours, theirs = socket.socketpair()
    reads, writes = socket.socketpair(type=socket.SOCK_DGRAM)
    for each in (ours, reads):
        each.setblocking(False)
    with ours, theirs, reads, writes:
        yield ours, theirs, reads, writes


def test_a_new_master_that_ends_right_after_it_was_ready_takes_nothing_over(line):
    ours, theirs, reads, _ = line
    with ours:
        successor = upgrade.Successor(12345, ours, reads)
        assert successor.read() is None
        theirs.send(b"S")
        assert successor.read() is None
        theirs.send(b"R")
        assert successor.read() is True
        theirs.close()
        with pytest.raises(UpgradeError, match=r"the new master \(pid 12345\) exited before its workers were ready"):
            successor.read()


def test_a_socket_is_given_once_and_the_rest_closed():
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    numbers = [each.detach() for each in opened]
    line, other = socket.socketpair()
    other.close()
    before = Predecessor(1, line, [(":0", numbers[0]), (":0", numbers[1]), (":1", numbers[2])])
    assert [before.listener(":0") for _ in range(3)] == [numbers[0], numbers[1], None]
    before.close_rest()
    for number in numbers[:2]:
        os.close(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(numbers[2])
    before.close()


def test_a_unix_socket_whose_file_is_gone_is_bound_anew(tmp_path):
    path = str(tmp_path / "app.sock")
    with sockets.bound([Bind(sockets.UnixAddress(path))]) as (old,):
        descriptor = os.dup(old.socket.fileno())
        os.unlink(path)
        new = sockets.take_over(sockets.UnixAddress(path), descriptor, backlog=1, mode=0o600)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        new.close()
        assert not os.path.exists(path)


def test_a_master_that_cannot_be_started_says_why(tmp_path):
    after = upgrade.start(Origin(sys.executable, (), {}, str(tmp_path / "gone")), [])
    after.line.setblocking(True)
    with pytest.raises(UpgradeError, match=r"cannot be started: .*/gone: No such file or directory$"):
        after.read()
    after.close()
    os.waitpid(after.pid, 0)


def test_process_1_refuses(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(UpgradeError, match="its container would stop"):
        upgrade.start(Origin("python", (), {}, "/"), [])


def running(code):
    """A new master that runs this code."""
    return upgrade.start(Origin(sys.executable, (sys.executable, "-c", code), dict(os.environ), "/"), [])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere", ": ModuleNotFoundError: No module named 'nowhere'"),
        ("print('tailrace: error: no such option\\nTry --help', file=__import__('sys').stderr)", ": no such option"),
        ("import os; [os.write(2, b'x' * 200_000) for _ in range(9)]; os.write(2, b'\\nthe end')", ": the end"),
        ("", ""),
    ],
)
def test_the_last_words_of_a_master_that_does_not_start(code, reason):
    after = running(code)
    with pytest.raises(UpgradeError) as caught:
        for _ in iter(after.read, True):
            # What it writes must be read, or it would wait.
            select.select(after.descriptors, [], [])
    assert str(caught.value) == f"the new master (pid {after.pid}) exited before its workers were ready{reason}"
    assert len(after.text) <= 16384
    after.close()
    assert after.descriptors == []
    os.waitpid(after.pid, 0)


def until_ready(successor):
    while not successor.read():
        select.select(successor.descriptors, [], [])


def running_until(code):
    """A new master that runs this code, and then until the descriptor that is returned is closed."""
    read, write = os.pipe()
    kept = os.dup(0)
    os.dup2(read, 0)
    after = running(code + "; import sys; sys.stdin.read()")
    os.dup2(kept, 0)
    os.close(kept)
    os.close(read)
    return after, write


# Writes to its standard error when its standard input is closed, and says whether the writes succeeded.
CHILD = """
import os, sys
sys.stdin.read()
os.write(int(sys.argv[1]), b"%a" % all(os.write(2, b"x" * 1000) == 1000 for _ in range(2000)))
"""


def test_a_new_master_gets_the_standard_error_of_the_old_one(capfd, tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    left, right = os.pipe()
    said, say = os.pipe()
    os.set_inheritable(say, True)
    # The child keeps the socket, as an agent does that a .pth file has started.
    code = (
        "import os, subprocess, sys; from tailrace.master import upgrade; print('before', file=sys.stderr);"
        f"subprocess.Popen([sys.executable, {str(tmp_path / 'child.py')!r}, '{say}'], pass_fds=[{say}],"
        f" stdin=open('/proc/{os.getpid()}/fd/{left}'));"
        "found = upgrade.predecessor(os.environ)\n"
        "with found.own_stderr(): print(len(open('/dev/stderr', 'w').name), file=sys.stderr)\n"
        "print('after', file=sys.stderr); found.ready()"
    )
    after, write = running_until(code)
    until_ready(after)
    assert after.text == "before"
    assert capfd.readouterr().err == "11\nafter\n"
    after.close()
    os.close(write)
    os.waitpid(after.pid, 0)
    for each in (left, right, say):
        os.close(each)
    assert select.select([said], [], [], 20)[0], "the child waits"
    assert os.read(said, 10) == b"True"
    os.close(said)


def test_a_standard_error_that_is_another_file_meanwhile_is_replaced(capfd):
    code = (
        "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n"
        "from tailrace.master import upgrade; found = upgrade.predecessor(os.environ)\n"
        "with found.own_stderr(): os.write(2, b'own')\n"
        "found.ready()"
    )
    after, write = running_until(code)
    until_ready(after)
    assert capfd.readouterr().err == "own"
    after.close()
    os.close(write)
    os.waitpid(after.pid, 0)


def test_an_error_while_the_log_is_opened_goes_to_the_old_master(capfd):
    after = running(
        "import os; from tailrace.master import upgrade; found = upgrade.predecessor(os.environ)\n"
        "with found.own_stderr(): os.write(2, b'own'); raise ValueError('no log')"
    )
    with pytest.raises(UpgradeError, match=r"exited before its workers were ready: ValueError: no log$"):
        for _ in iter(after.read, True):
            select.select(after.descriptors, [], [])
    assert capfd.readouterr().err == "own"
    after.close()
    os.waitpid(after.pid, 0)


@pytest.mark.parametrize("has_memfd", [True, False])
def test_a_new_master_gets_variables_of_any_size_and_keeps_no_file(has_memfd, monkeypatch):
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    code = (
        "import os; from tailrace.master import upgrade; from tailrace.cli import envfile\n"
        "found = upgrade.predecessor(os.environ)\n"
        "assert not os.get_inheritable(found.variables); envfile.inherit(found.variables)\n"
        "assert len(envfile._inherited['/env']['A']) == 1_000_000; open(found.variables)"
    )
    origin = Origin(sys.executable, (sys.executable, "-c", code), dict(os.environ), "/")
    before = os.listdir("/proc/self/fd")
    after = upgrade.start(origin, [], variables=json.dumps({"/env": {"A": "é" * 1_000_000}}))
    os.waitpid(after.pid, 0)
    with pytest.raises(UpgradeError, match="Bad file descriptor"):
        after.read()
    after.close()
    assert len(os.listdir("/proc/self/fd")) == len(before), "this one keeps no file, too"


def test_one_that_does_not_take_its_standard_error_back_takes_nothing_over(line):
    ours, theirs, reads, writes = line
    child = os.fork()
    if child == 0:
        signal.pause()
    after = Successor(child, ours, reads)
    writes.send(b"some text\n")
    theirs.send(b"R")
    with pytest.raises(UpgradeError, match=r"as Tailrace 0.2 does; to go back to Tailrace 0.2, restart the server"):
        after.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_one_that_writes_without_end_does_not_stop_the_loop():
    after = running("import os\nwhile True: os.write(2, b'x' * 1000)")
    for _ in range(3):
        assert after.read() is None
        select.select(after.descriptors, [], [])
    os.kill(after.pid, signal.SIGKILL)
    os.waitpid(after.pid, 0)
    after.close()


def test_a_report_in_pieces(line):
    ours, theirs, reads, _ = line
    after = Successor(4711, ours, reads)
    assert after.read() is None
    theirs.send(b"Ecannot be")
    assert after.read() is None
    theirs.send(b" started")
    theirs.close()
    with pytest.raises(UpgradeError, match=r"the new master \(pid 4711\) cannot be started$"):
        after.read()
    after.close()
