"""The surroundings of a master: variables of the environment, pid file, reports. tests/server has the tests of whole
servers."""

import os
import socket

import pytest
from harness.settings import server_settings

from tailrace.cli.settings import Setting, resolve
from tailrace.master import service, upgrade
from tailrace.master.service import Service


@pytest.fixture
def environ(monkeypatch):
    """The environment, given back at the end, with these changes."""

    def change(**variables):
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return change


@pytest.fixture
def passed(monkeypatch):
    """As if systemd had passed one socket, wherever its descriptor is."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        monkeypatch.setattr("tailrace.master.notify._FIRST_DESCRIPTOR", opened.fileno())
        yield opened.fileno()


@pytest.mark.parametrize("variables", [{}, {"PORT": "8123"}])
def test_sockets_of_systemd_are_used_where_no_option_says_where_to_listen(environ, passed, variables):
    environ(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
    settings, _ = service.from_environment(resolve({"app": "a:b"}, variables))
    assert settings["bind"] == Setting((f"fd://{passed}",), "LISTEN_FDS")
    assert "LISTEN_FDS" not in os.environ


@pytest.mark.parametrize(("bind", "warned"), [(":1234", True), ("fd://{}", False)])
def test_an_option_beats_the_sockets_of_systemd(environ, passed, caplog, bind, warned):
    environ(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
    given = bind.format(passed)
    settings, _ = service.from_environment(resolve({"app": "a:b", "bind": [given]}, {}))
    assert settings["bind"].value == (given,)
    assert ("not used, since command line: --bind says where to listen" in caplog.text) is warned


def test_the_file_of_variables_is_the_one_of_the_start(environ, tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "current").symlink_to("one")
    monkeypatch.chdir(tmp_path / "current")
    environ(PWD=str(tmp_path / "current"))
    settings, _ = service.from_environment(resolve({"env_file": "app.env"}, {}))
    assert settings["env_file"].value == str(tmp_path / "current" / "app.env"), "by the link, which may be turned"


def test_a_service_of_which_nothing_is_asked_does_nothing(tmp_path, caplog):
    with Service() as quiet:
        assert quiet.descriptors() == []
        assert quiet.wake_at() is None
        assert quiet.kept("127.0.0.1:0") is None
        quiet.reloading()
        quiet.serves("1 worker")
        quiet.reload_failed("no")
        assert quiet.events(0.0) == []
        quiet.begin_upgrade()
        assert "only a server started by the `tailrace` command can be replaced" in caplog.text
        quiet.stopping("stopping")


class Told:
    """A service manager in this process."""

    def __init__(self, interval=None):
        self.said = []
        self.watchdog_interval = interval

    def __getattr__(self, name):
        return lambda *arguments: self.said.append(name)


def test_the_watchdog_is_told_from_the_start_of_service_on():
    manager = Told(5.0)
    with Service(manager=manager) as watched:
        assert watched.wake_at() is None, "until it serves the manager does not watch"
        watched.serves("1 worker")
        began = watched.wake_at()
        watched.events(began)
        assert watched.wake_at() == began + 5.0
        watched.events(began + 4.9)
        watched.events(began + 5.0)
        watched.stopping("stopping")
    assert manager.said == ["ready", "watchdog", "watchdog", "stopping", "close"]


def test_a_new_master_reports_nothing_until_the_old_one_hands_over(tmp_path, caplog):
    caplog.set_level("INFO")
    old, new = socket.socketpair()
    new.setblocking(False)
    manager = Told(5.0)
    pid_file = tmp_path / "app.pid"
    pid_file.write_text(f"{os.getppid()}\n")
    chosen = server_settings(pidfile=str(pid_file))
    predecessor = upgrade.Predecessor(os.getppid(), new, [])
    with old, Service(manager=manager, origin=upgrade.Origin.here(), predecessor=predecessor) as later:
        later.settle(chosen, [])
        assert later.descriptors() == [new.fileno()]
        later.reloading()
        later.serves("1 worker")
        later.serves("1 worker, again")
        assert old.recv(10) == b"R"
        assert later.events(0.0) == []
        later.begin_upgrade()
        assert f"previous master (process {os.getppid()}) has not handed over yet" in caplog.text
        assert manager.said == []
        assert pid_file.read_text() == f"{os.getppid()}\n"
        old.send(b"G")
        assert later.events(0.0) == []
        assert manager.said == ["ready"]
        assert pid_file.read_text() == f"{os.getpid()}\n"
        assert later.descriptors() == []
        assert f"taken over from process {os.getppid()}" in caplog.text
    assert not pid_file.exists()


def test_a_new_master_whose_predecessor_dies_takes_over_at_once_and_is_ready_later(tmp_path):
    old, new = socket.socketpair()
    new.setblocking(False)
    manager = Told()
    chosen = server_settings(pidfile=str(tmp_path / "app.pid"))
    with Service(manager=manager, predecessor=upgrade.Predecessor(os.getppid(), new, [])) as later:
        later.settle(chosen, [])
        old.close()
        later.events(0.0)
        assert later.descriptors() == [], "nothing is left to wait on"
        assert (tmp_path / "app.pid").read_text() == f"{os.getpid()}\n"
        assert manager.said == []
        later.serves("1 worker")
        assert manager.said == ["ready"]


def test_a_new_master_that_is_stopped_does_not_take_over(tmp_path):
    old, new = socket.socketpair()
    new.setblocking(False)
    manager = Told(5.0)
    pid_file = tmp_path / "app.pid"
    pid_file.write_text(f"{os.getppid()}\n")
    chosen = server_settings(pidfile=str(pid_file))
    with Service(manager=manager, predecessor=upgrade.Predecessor(os.getppid(), new, [])) as stopped:
        stopped.settle(chosen, [])
        stopped.stopping("stopping")
        assert old.recv(10) == b"", "the old one learns of it"
        old.close()
        assert stopped.descriptors() == []
        stopped.events(0.0)
    assert manager.said == ["close"]
    assert pid_file.read_text() == f"{os.getppid()}\n"


def test_a_new_master_that_fails_leaves_the_pid_file(tmp_path):
    old, new = socket.socketpair()
    pid_file = tmp_path / "app.pid"
    pid_file.write_text(f"{os.getppid()}\n")
    chosen = server_settings(pidfile=str(pid_file))
    with old, Service(predecessor=upgrade.Predecessor(os.getppid(), new, [])) as failing:
        failing.settle(chosen, [])
    new.close()
    assert pid_file.read_text() == f"{os.getppid()}\n"
