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
    "state", ["", "{}", "nonsense", '{"master": 1, "line": 0, "listeners": []}', '{"master": [], "line": 0}']
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


def test_a_new_master_that_ends_right_after_it_was_ready_takes_nothing_over():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        successor = upgrade.Successor(12345, ours)
        assert successor.read() is None
        theirs.send(b"R")
        assert successor.read() is True
        theirs.close()
        with pytest.raises(UpgradeError, match=r"the new master \(pid 12345\) ended before its workers served"):
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
        while after.read() is None:
            pass
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
        ("import os; os.write(2, b'x' * 300_000 + b'\\nthe end')", ": the end"),
        ("", ""),
    ],
)
def test_the_last_words_of_a_master_that_does_not_start(code, reason):
    after = running(code)
    with pytest.raises(UpgradeError) as caught:
        for _ in iter(after.read, True):
            # What it writes must be read, or it would wait.
            select.select(after.descriptors, [], [])
    assert str(caught.value) == f"the new master (pid {after.pid}) ended before its workers served{reason}"
    assert len(after.text) <= 16384
    after.close()
    assert after.descriptors == []
    os.waitpid(after.pid, 0)


def test_a_new_master_gets_the_standard_error_of_the_old_one(capfd):
    code = (
        "import os, sys; from tailrace.master import upgrade; print('before', file=sys.stderr);"
        "found = upgrade.predecessor(os.environ); print('after', file=sys.stderr); found.ready(); sys.stdin.read()"
    )
    read, write = os.pipe()
    with open(read) as stdin:
        kept = os.dup(0)
        os.dup2(stdin.fileno(), 0)
        after = running(code)
        os.dup2(kept, 0)
        os.close(kept)
    while not after.read():
        select.select(after.descriptors, [], [])
    assert after.text == "before"
    assert after.descriptors == [after.line.fileno()]
    assert capfd.readouterr().err == "after\n"
    os.close(write)
    os.waitpid(after.pid, 0)
    after.close()


def test_one_that_keeps_writing_to_the_old_one_takes_nothing_over():
    ours, theirs = socket.socketpair()
    reads, writes = socket.socketpair()
    child = os.fork()
    if child == 0:
        signal.pause()
    with theirs, writes:
        for each in (ours, reads):
            each.setblocking(False)
        after = Successor(child, ours, reads)
        writes.send(b"some text\n")
        theirs.send(b"R")
        with pytest.raises(UpgradeError, match=r"as Tailrace 0.2 does; to go back to that version, restart the server"):
            after.read()
        after.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_a_report_in_pieces():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    after = Successor(4711, ours)
    assert after.read() is None
    theirs.send(b"Ecannot be")
    assert after.read() is None
    theirs.send(b" started")
    theirs.close()
    with pytest.raises(UpgradeError, match=r"the new master \(pid 4711\) cannot be started$"):
        after.read()
    after.close()
