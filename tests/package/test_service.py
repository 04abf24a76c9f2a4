"""The service around a master: variables of the environment, pid file, reports. tests/server has the tests of whole
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


class HandOver:
    """An old master at the other end of the line, and the pid file that it owns."""

    def __init__(self, directory):
        self.old, new = socket.socketpair()
        new.setblocking(False)
        self.manager = Told(5.0)
        self.pid_file = directory / "app.pid"
        self.pid_file.write_text(f"{os.getppid()}\n")
        self.chosen = server_settings(pidfile=str(self.pid_file))
        predecessor = upgrade.Predecessor(os.getppid(), new, [])
        self.new = new
        self.service = Service(manager=self.manager, origin=upgrade.Origin.here(), predecessor=predecessor)

    def owner(self):
        return int(self.pid_file.read_text())


@pytest.fixture
def handover(tmp_path):
    made = HandOver(tmp_path)
    with made.old, made.new:
        yield made


def test_a_new_master_reports_nothing_until_the_old_one_hands_over(handover, caplog):
    caplog.set_level("INFO")
    with handover.service as later:
        later.set_up(handover.chosen, [])
        assert later.descriptors() == [handover.new.fileno()]
        later.reloading()
        later.serves("1 worker")
        later.serves("1 worker, again")
        assert handover.old.recv(10) == b"R"
        assert later.events(0.0) == []
        later.begin_upgrade()
        assert f"previous master (process {os.getppid()}) has not handed over yet" in caplog.text
        assert handover.manager.said == []
        assert handover.owner() == os.getppid()
        handover.old.send(b"G")
        assert later.events(0.0) == []
        assert handover.manager.said == ["ready"]
        assert handover.owner() == os.getpid()
        assert later.descriptors() == later.holding.descriptors(0.0)
        assert f"taken over from process {os.getppid()}" in caplog.text
    assert not handover.pid_file.exists()


def test_a_new_master_whose_predecessor_dies_takes_over_at_once_and_is_ready_later(handover):
    with handover.service as later:
        later.set_up(handover.chosen, [])
        handover.old.close()
        later.events(0.0)
        assert later.descriptors() == later.holding.descriptors(0.0), "only connections that are to be held"
        assert handover.owner() == os.getpid()
        assert handover.manager.said == []
        later.serves("1 worker")
        assert handover.manager.said == ["ready"]


def test_a_new_master_that_is_stopped_does_not_take_over(handover):
    with handover.service as stopped:
        stopped.set_up(handover.chosen, [])
        stopped.stopping("stopping")
        assert handover.old.recv(10) == b"", "the old one learns of it"
        assert stopped.descriptors() == []
        stopped.events(0.0)
    assert handover.manager.said == ["close"]
    assert handover.owner() == os.getppid()


def test_a_new_master_that_fails_leaves_the_pid_file(handover):
    with handover.service as failing:
        failing.set_up(handover.chosen, [])
    assert handover.owner() == os.getppid()
