"""SIGUSR2: another master replaces the running one. No request is lost."""

import os
import re
import signal

import pytest
from harness.addresses import Address
from harness.operated import Checking, operating

APP = """
import os

def app(environ, start_response):
    path = environ["PATH_INFO"][1:]
    if path == "who":
        body = f"{VERSION} {os.getpid()} {os.getppid()}".encode()
    else:
        body = b"%d." % int(path) * (1 + int(path) % 7 * 997)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""


LOG_CONFIG = """
version = 1
handlers.file = {class = "logging.FileHandler", filename = "/dev/stderr"}
loggers.tailrace = {level = "INFO", handlers = ["file"]}
"""


REJECTED = re.compile(
    r"SIGUSR2: the new master .* exited before its workers were ready: --log.* cannot be combined .* keeps running"
)


def write(directory, version):
    (directory / "app.py").write_text(APP + f"\nVERSION = {version!r}\n")


def write_gated(directory, version):
    """Writes an application that loads when the named pipe that this returns is opened and closed."""
    write(directory, version)
    os.mkfifo(directory / "gate")
    (directory / "app.py").write_text("open('gate').read()\n" + (directory / "app.py").read_text())
    return directory / "gate"


@pytest.fixture
def operated(tmp_path):
    write(tmp_path, "one")
    return lambda *arguments, **more: operating(tmp_path, "app:app", *arguments, **more)


def taken_over(server, before):
    """Returns once another master has taken over and the old one, whose workers may have answered, has ended."""
    server.logged(f"taken over from process {before}")
    server.until(lambda: before not in server.processes(), "the end of the old master")


def upgrade(server):
    before = server.master
    server.tell(signal.SIGUSR2)
    taken_over(server, before)


def who(server):
    version, worker, master = server.get("/who").body.decode().split()
    return version, int(worker), int(master)


def test_no_request_is_lost_in_five_upgrades(operated, tmp_path):
    with operated("--workers", "2") as server:
        masters = [server.master]
        with Checking(server.address) as clients:
            for turn in range(1, 6):
                clients.go_on()
                write(tmp_path, f"version-{turn}")
                server.tell(signal.SIGUSR2)
                taken_over(server, masters[-1])
                masters.append(server.master)
                clients.go_on()
                version, _, master = who(server)
                assert (version, master) == (f"version-{turn}", masters[-1])
            assert not clients.faults
        assert len(set(masters)) == 6
        assert server.stop() == 0
        assert not (tmp_path / "app.pid").exists()


def test_a_new_master_that_fails_leaves_the_old_one(operated, tmp_path):
    with operated("--workers", "2") as server, Checking(server.address) as clients:
        before = server.master
        clients.go_on()
        (tmp_path / "app.py").write_text("raise RuntimeError('the new code is broken')\n")
        server.tell(signal.SIGUSR2)
        server.logged("exited before its workers were ready; this master")
        clients.go_on()
        assert server.master == before
        assert "RuntimeError: the new code is broken" in server.log
        # And it can still be replaced.
        write(tmp_path, "two")
        server.tell(signal.SIGUSR2)
        taken_over(server, before)
        clients.go_on()
        assert who(server)[0] == "two"


@pytest.mark.parametrize(
    ("broken", "content", "reason"),
    [
        ("tailrace.toml", "workers = \n", "tailrace.toml: "),
        ("app.env", "no variable\n", "app.env, line 1: not NAME=value"),
        ("tailrace.py", "raise ImportError('half installed')\n", "ImportError: half installed"),
    ],
)
def test_the_log_says_why_a_new_master_ended_before_it_had_a_log(operated, tmp_path, broken, content, reason):
    (tmp_path / "app.env").touch()
    with operated("--env-file", "app.env") as server:
        before = server.master
        (tmp_path / broken).write_text(content)
        server.tell(signal.SIGUSR2)
        server.logged("keeps running")
        (line,) = (line for line in server.log.splitlines() if "keeps running" in line)
        assert f"[{before}] ERROR: SIGUSR2: the new master" in line
        assert "exited before its workers were ready: " in line
        assert reason in line
        (tmp_path / broken).unlink()
        (tmp_path / "app.env").touch()
        upgrade(server)
        assert os.readlink(f"/proc/{server.master}/fd/2") == str(tmp_path / "log"), "its own standard error"


@pytest.mark.parametrize("name", ["/dev/stderr", "/proc/self/fd/2", "log.toml"])
def test_a_log_that_opens_the_standard_error_opens_that_of_the_old_master(operated, tmp_path, name):
    (tmp_path / "log.toml").write_text(LOG_CONFIG)
    with operated("--log-config" if name == "log.toml" else "--log", name) as server:
        for _ in range(2):
            upgrade(server)
        assert os.readlink(f"/proc/{server.master}/fd/2") == str(tmp_path / "log")
        # An error while the log is opened is in the log of the old master.
        (tmp_path / "tailrace.toml").write_text("log_format = 'json'\nlog_config = 'log.toml'\n")
        server.tell(signal.SIGUSR2)
        server.until(lambda: REJECTED.search(server.log), "why in the log of the old master")


def test_a_unix_socket_and_its_file_stay(operated, tmp_path):
    path = tmp_path / "app.sock"
    with operated(address=Address(path=str(path))) as server:
        identity = path.stat().st_ino
        with Checking(server.address) as clients:
            for turn in range(2):
                clients.go_on()
                upgrade(server)
                clients.go_on()
                assert path.stat().st_ino == identity, turn
        server.stop()
        assert not path.exists()


def test_settings_are_read_anew(operated, tmp_path):
    settings = tmp_path / "tailrace.toml"
    settings.write_text("workers = 1\n")
    with operated() as server:
        server.logged("app:app with 1 worker")
        settings.write_text("workers = 3\n")
        upgrade(server)
        server.logged("app:app with 3 workers")
        # Wrong ones are the new master's end alone.
        settings.write_text("workers = 'many'\n")
        server.tell(signal.SIGUSR2)
        server.logged("exited before its workers were ready: tailrace.toml: workers = 'many': ")
        assert who(server)[0] == "one"


def test_a_stop_during_an_upgrade_ends_both_masters(operated, tmp_path):
    with operated() as server:
        gate = write_gated(tmp_path, "two")
        server.tell(signal.SIGUSR2)
        # It waits in the new code, which never ends by itself.
        with gate.open("wb"):
            assert server.stop() == 0
        assert "taken over" not in server.log


def test_only_one_upgrade_at_a_time(operated, tmp_path):
    with operated() as server:
        gate = write_gated(tmp_path, "two")
        before = server.master
        server.tell(signal.SIGUSR2)
        with gate.open("wb"):
            server.tell(signal.SIGUSR2)
            server.logged("is starting; to cancel that, send it SIGTERM")
        taken_over(server, before)
        assert who(server)[0] == "two"


def test_an_old_master_that_is_killed_leaves_the_service_to_the_new_one(operated, tmp_path):
    with operated() as server:
        gate = write_gated(tmp_path, "two")
        before = server.master
        server.tell(signal.SIGUSR2)
        with gate.open("wb"):
            os.kill(before, signal.SIGKILL)
            server.process.wait()
        taken_over(server, before)
        assert server.master != before
        # The old worker outlives its master by what it has to finish.
        server.until(lambda: who(server)[0] == "two", "answers of the new code")


def test_addresses_may_change(operated, tmp_path):
    first, second = tmp_path / "first.sock", tmp_path / "second.sock"
    settings = tmp_path / "tailrace.toml"
    settings.write_text(f'bind = ["unix:{first}"]\n')
    with operated(binds=False, address=Address(path=str(first))) as server:
        assert who(server)[0] == "one"
        settings.write_text(f'bind = ["unix:{second}"]\n')
        upgrade(server)
        server.address = Address(path=str(second))
        assert who(server)[0] == "one"
        assert not first.exists()


def test_the_new_master_enters_by_the_link_that_a_deployment_turns(tmp_path):
    for version in ("first", "second"):
        (tmp_path / version).mkdir()
        write(tmp_path / version, version)
    current = tmp_path / "current"
    current.symlink_to("first")
    with operating(current, "app:app") as server:
        assert who(server)[0] == "first"
        current.unlink()
        current.symlink_to("second")
        server.process.send_signal(signal.SIGUSR2)
        server.until(lambda: who(server)[0] == "second", "answers of the new code")
