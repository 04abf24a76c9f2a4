"""SIGUSR2: another master replaces the running one. No request is lost."""

import os
import signal

import pytest
from harness.addresses import Address
from harness.operated import Checking, Operated

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


def write(directory, version):
    (directory / "app.py").write_text(APP + f"\nVERSION = {version!r}\n")


@pytest.fixture
def operated(tmp_path):
    write(tmp_path, "one")
    return lambda *arguments, **more: Operated(tmp_path, "app:app", *arguments, **more)


def taken_over(server, before):
    """Returns once another master has taken over and the old one, whose workers may have answered, has ended."""
    server.logged(f"taken over from process {before}")
    server.until(lambda: before not in server.processes(), "the end of the old master")


def who(server):
    version, worker, master = server.get("/who").body.decode().split()
    return version, int(worker), int(master)


@pytest.mark.slow
def test_no_request_is_lost_in_five_upgrades(operated, tmp_path):
    with operated("--workers", "2") as server:
        server.serves()
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
        server.stop()
        assert server.process.returncode == 0
        assert not (tmp_path / "app.pid").exists()


@pytest.mark.slow
def test_a_new_master_that_fails_leaves_the_old_one(operated, tmp_path):
    with operated("--workers", "2") as server, Checking(server.serves().address) as clients:
        before = server.master
        clients.go_on()
        (tmp_path / "app.py").write_text("raise RuntimeError('the new code is broken')\n")
        server.tell(signal.SIGUSR2)
        server.logged("ended before its workers served; this master")
        clients.go_on()
        assert server.master == before
        assert "RuntimeError: the new code is broken" in server.log
        # And it can still be replaced.
        write(tmp_path, "two")
        server.tell(signal.SIGUSR2)
        taken_over(server, before)
        clients.go_on()
        assert who(server)[0] == "two"


def test_a_unix_socket_and_its_file_stay(operated, tmp_path):
    path = tmp_path / "app.sock"
    with operated(address=Address(path=str(path))) as server:
        identity = server.serves() and path.stat().st_ino
        with Checking(server.address) as clients:
            for turn in range(2):
                before = server.master
                clients.go_on()
                server.tell(signal.SIGUSR2)
                taken_over(server, before)
                clients.go_on()
                assert path.stat().st_ino == identity, turn
        server.stop()
        assert not path.exists()


def test_settings_are_read_anew(operated, tmp_path):
    settings = tmp_path / "tailrace.toml"
    settings.write_text("workers = 1\n")
    with operated() as server:
        server.serves().logged("app:app with 1 worker")
        settings.write_text("workers = 3\n")
        before = server.master
        server.tell(signal.SIGUSR2)
        taken_over(server, before)
        server.logged("app:app with 3 workers")
        # Wrong ones are the new master's end alone.
        settings.write_text("workers = 'many'\n")
        server.tell(signal.SIGUSR2)
        server.logged("ended before its workers served; this master")
        assert who(server)[0] == "one"


def test_a_stop_during_an_upgrade_ends_both_masters(operated, tmp_path):
    with operated() as server:
        server.serves()
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        (tmp_path / "app.py").write_text("open('gate').read()\n")
        server.tell(signal.SIGUSR2)
        # It waits in the new code, which never ends by itself.
        with gate.open("wb"):
            server.stop()
        assert server.process.returncode == 0
        assert "taken over" not in server.log


def test_only_one_upgrade_at_a_time(operated, tmp_path):
    with operated() as server:
        server.serves()
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        write(tmp_path, "two")
        (tmp_path / "app.py").write_text("open('gate').read()\n" + (tmp_path / "app.py").read_text())
        before = server.master
        server.tell(signal.SIGUSR2)
        with gate.open("wb"):
            server.tell(signal.SIGUSR2)
            server.logged("is starting; to cancel that, send it SIGTERM")
        taken_over(server, before)
        assert who(server)[0] == "two"


def test_an_old_master_that_is_killed_leaves_the_service_to_the_new_one(operated, tmp_path):
    with operated() as server:
        server.serves()
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        write(tmp_path, "two")
        (tmp_path / "app.py").write_text("open('gate').read()\n" + (tmp_path / "app.py").read_text())
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
        server.serves()
        assert who(server)[0] == "one"
        settings.write_text(f'bind = ["unix:{second}"]\n')
        before = server.master
        server.tell(signal.SIGUSR2)
        taken_over(server, before)
        server.address = Address(path=str(second))
        assert who(server)[0] == "one"
        assert not first.exists()
