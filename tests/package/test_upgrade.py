"""Upgrades between two masters: real processes that execute a small master of the tests."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import UpgradeError
from tailrace.master import upgrade
from tailrace.master.upgrade import Origin, Predecessor, Successor
from tailrace.system import sockets
from tailrace.system.binds import Bind

# Writes its state as lines of JSON, and obeys the lines that it reads. It serves no requests: the test connects, and
# sees which master accepts.
MASTER = """
import json, os, select, signal, sys
from tailrace.system import sockets
from tailrace.system.binds import parse_all
from tailrace.master import upgrade

def say(what):
    print(json.dumps(what), flush=True)

signal.signal(signal.SIGUSR2, lambda number, frame: None)
before = upgrade.predecessor(os.environ)
origin = upgrade.Origin.here()
say({
    "pid": os.getpid(),
    "directory": os.getcwd(),
    "variables": [name for name in os.environ if "TAILRACE" in name],
    "listen_pid": os.environ.get("LISTEN_PID"),
    "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
})
fail, *binds = sys.argv[1:]
os.chdir("/")
kept = before.listener if before else lambda address: None
with sockets.bound(parse_all(binds), backlog=16, socket_mode=None, kept=kept) as listeners:
    say([listener.url for listener in listeners])
    if before:
        before.close_rest()
        if os.path.exists(fail):
            sys.exit(1)
        before.ready()
        select.select([before.line], [], [], 60)
        say(before.has_let_go())
        before.close()
        for listener in listeners:
            listener.take_file()
    while (command := os.read(0, 100).decode().strip()) not in ("end", ""):
        if command == "accept":
            for listener in listeners:
                accepted, _ = listener.socket.accept()
                accepted.send(str(os.getpid()).encode())
                accepted.close()
            continue
        after = upgrade.start(origin, listeners)
        try:
            while after.read() is None:
                select.select([after.line], [], [], 60)
        except upgrade.UpgradeError as error:
            after.close()
            os.waitpid(after.pid, 0)
            say(str(error))
            continue
        if command == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        for listener in listeners:
            listener.leave_file()
        after.go()
        break
"""


class Masters:
    """The first master, and through the pipes that it leaves to them all those after it."""

    def __init__(self, directory, *binds):
        (directory / "master.py").write_text(MASTER)
        self.fail = directory / "fail"
        self.process = subprocess.Popen(
            [sys.executable, "-u", "master.py", str(self.fail), *binds],
            cwd=directory,
            env={**os.environ, "PWD": str(directory), "PYTHONPATH": str(Path(upgrade.__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def said(self):
        line = self.process.stdout.readline()
        assert line, "the master has ended"
        return json.loads(line)

    def do(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()


@pytest.fixture
def masters(tmp_path):
    started = []

    def start(*binds, directory=tmp_path):
        started.append(Masters(directory, *binds))
        return started[-1]

    yield start
    for each in started:
        # Whoever reads the commands now ends with them.
        each.process.stdin.close()
        each.process.stdout.close()
        each.process.wait(30)


def who(url):
    """The number of the process that accepts."""
    kind, where = (
        (socket.AF_UNIX, url.removeprefix("unix:")) if url.startswith("unix:") else (socket.AF_INET, address(url))
    )
    client = socket.socket(kind)
    client.settimeout(30)
    client.connect(where)
    return client


def address(url):
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_the_new_master_has_the_same_sockets(masters, tmp_path):
    path = tmp_path / "app.sock"
    run = masters("127.0.0.1:0", f"unix:{path}")
    first, urls = run.said(), run.said()
    # These wait in the queues of the kernel over the change.
    waiting = [who(url) for url in urls]
    run.do("upgrade")
    second = run.said()
    assert run.said() == urls
    assert run.said() is True
    assert run.process.wait(30) == 0
    assert path.exists()
    run.do("accept")
    assert [client.recv(64) for client in waiting] == [str(second["pid"]).encode()] * 2
    for client in waiting:
        client.close()
    assert second["pid"] != first["pid"]
    assert (second["directory"], second["variables"], second["mask"]) == (str(tmp_path), [], [])
    run.do("upgrade")
    third = run.said()
    assert (run.said(), run.said()) == (urls, True)
    assert third["pid"] not in (first["pid"], second["pid"])
    run.do("end")
    assert run.process.stdout.readline() == ""
    assert not path.exists(), "the last one removes the file"


def test_a_new_master_that_fails_leaves_the_old_one(masters, tmp_path):
    run = masters("127.0.0.1:0", f"unix:{tmp_path}/app.sock")
    first, urls = run.said(), run.said()
    run.fail.touch()
    run.do("upgrade")
    second = run.said()
    assert run.said() == urls
    assert run.said() == f"the new master (pid {second['pid']}) ended before its workers served"
    clients = [who(urls[0])]
    # The failed one was stopped in order, and must not have taken the file with it.
    clients.append(who(urls[1]))
    run.do("accept")
    assert [client.recv(64) for client in clients] == [str(first["pid"]).encode()] * 2
    for client in clients:
        client.close()
    run.fail.unlink()
    run.do("upgrade")
    run.said()
    assert (run.said(), run.said()) == (urls, True)


def test_an_old_master_that_is_killed_has_let_go(masters):
    run = masters("127.0.0.1:0")
    run.said()
    urls = run.said()
    run.do("die")
    second = run.said()
    assert (run.said(), run.said()) == (urls, True)
    assert run.process.wait(30) == -signal.SIGKILL
    with who(urls[0]) as client:
        run.do("accept")
        assert client.recv(64) == str(second["pid"]).encode()


def test_the_new_master_enters_by_the_link(masters, tmp_path):
    """A deployment that switches a link is followed."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "master.py").write_text(MASTER)
    (tmp_path / "current").symlink_to("one")
    run = masters("127.0.0.1:0", directory=tmp_path / "current")
    assert run.said()["directory"] == str(tmp_path / "one")
    run.said()
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("two")
    run.do("upgrade")
    assert run.said()["directory"] == str(tmp_path / "two")


def test_a_master_that_cannot_be_started_says_why(masters, tmp_path):
    (tmp_path / "gone").mkdir()
    run = masters("127.0.0.1:0", directory=tmp_path / "gone")
    run.said()
    run.said()
    (tmp_path / "gone" / "master.py").unlink()
    (tmp_path / "gone").rmdir()
    run.do("upgrade")
    assert "cannot be started" in (said := run.said())
    assert said.endswith("/gone: No such file or directory")


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
    with sockets.bound([Bind(sockets.UnixAddress(path))], backlog=1, socket_mode=None) as (old,):
        descriptor = os.dup(old.socket.fileno())
        os.unlink(path)
        new = sockets.take_over(sockets.UnixAddress(path), descriptor, backlog=1, socket_mode=0o600)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        new.close()
        assert not os.path.exists(path)


def test_process_1_refuses(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(UpgradeError, match="its container would stop"):
        upgrade.start(Origin("python", (), {}, "/"), [])


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
