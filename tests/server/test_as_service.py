"""The server as a service: systemd (replaced by a socket), hooks, pid file, variables, user, process 1."""

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from harness.addresses import Address, free_address
from harness.operated import Checking, Operated
from harness.programs import tailrace

APP = """
import os

def app(environ, start_response):
    path = environ["PATH_INFO"][1:]
    if path.isdigit():
        body = b"%d." % int(path) * (1 + int(path) % 7 * 997)
    elif path == "ids":
        body = repr((os.getresuid(), os.getresgid(), os.getgroups())).encode()
    else:
        body = os.environ.get(path, "unset").encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""

# What systemd does between fork and exec, for the program that follows.
ACTIVATE = """
import fcntl, os, runpy, sys
del sys.argv[0]
descriptors = [int(text) for text in sys.argv.pop(0).split(",")]
high = [fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in descriptors]
for index, each in enumerate(high):
    os.dup2(each, 3 + index)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(high)), WATCHDOG_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, *sys.argv])
"""


@pytest.fixture
def operated(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    return lambda *arguments, **more: Operated(tmp_path, "app:app", *arguments, **more)


class Manager:
    """systemd's end: what came, and from which process the kernel says it came."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.settimeout(30)
        self.socket.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path)}

    def told(self):
        """The next that is no sign of life: its variables, and the number of the process."""
        while True:
            data, ancillary, _, _ = self.socket.recvmsg(4096, 1024)
            ((_, _, credentials),) = ancillary
            variables = dict(line.split("=", 1) for line in data.decode().split("\n"))
            if variables != {"WATCHDOG": "1"}:
                return variables, struct.unpack("iII", credentials)[0]

    def sign_of_life(self):
        """The number of the process that gives the next sign of life."""
        while True:
            data, ancillary, _, _ = self.socket.recvmsg(4096, 1024)
            if data == b"WATCHDOG=1":
                return struct.unpack("iII", ancillary[0][2])[0]


@pytest.fixture
def manager(tmp_path):
    manager = Manager(tmp_path / "notify")
    with manager.socket:
        yield manager


def test_each_state_of_the_service_is_reported_to_systemd(operated, manager, tmp_path):
    with operated("--workers", "2", environment=manager.environment) as server:
        master = server.process.pid
        serving = ({"READY": "1", "STATUS": "2 workers serving"}, master)
        assert manager.told() == serving
        server.tell(signal.SIGHUP)
        reloading, by = manager.told()
        assert (reloading["RELOADING"], by) == ("1", master)
        assert int(reloading["MONOTONIC_USEC"]) > 0
        assert manager.told() == serving
        (tmp_path / "app.py").write_text("raise RuntimeError('broken')\n")
        for number, status in (
            (signal.SIGHUP, "reload failed, the old workers keep serving: worker 1"),
            (signal.SIGUSR2, "upgrade failed: the new master"),
        ):
            server.tell(number)
            assert manager.told()[0]["RELOADING"] == "1"
            ready, by = manager.told()
            assert (ready["READY"], by) == ("1", master)
            assert ready["STATUS"].startswith(status)
            assert number == signal.SIGUSR2 or "RuntimeError: broken" in ready["STATUS"]
        assert server.get("/NOTIFY_SOCKET").body == b"unset"
        server.tell(signal.SIGTERM)
        assert manager.told() == ({"STOPPING": "1", "STATUS": "finishing the requests in flight"}, master)


def test_systemd_learns_the_number_of_the_new_master(operated, manager):
    with operated(environment={**manager.environment, "WATCHDOG_USEC": "100000"}) as server:
        first = server.process.pid
        assert manager.told()[0]["READY"] == "1"
        assert manager.sign_of_life() == first
        server.tell(signal.SIGUSR2)
        assert manager.told()[0]["RELOADING"] == "1"
        handed_over, by = manager.told()
        # By the old master: systemd accepts no reports of the new one yet.
        assert (handed_over["READY"], by) == ("1", first)
        second = int(handed_over["MAINPID"])
        ready, by = manager.told()
        assert (ready["READY"], by) == ("1", second)
        server.until(lambda: first not in server.processes(), "the end of the old master")
        assert manager.sign_of_life() == second
        assert server.master == second
        server.tell(signal.SIGTERM)
        assert manager.told() == ({"STOPPING": "1", "STATUS": "finishing the requests in flight"}, second)


def test_sockets_of_systemd_outlive_every_master(operated, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as web, socket.socket(socket.AF_UNIX) as local:
        path = tmp_path / "app.sock"
        local.bind(str(path))
        local.listen()
        descriptors = [web.fileno(), local.fileno()]
        with operated(
            address=Address("127.0.0.1", web.getsockname()[1]),
            binds=False,
            prefix=["-c", ACTIVATE, ",".join(map(str, descriptors))],
            pass_fds=descriptors,
        ) as server:
            server.serves()
            assert server.get("/LISTEN_FDS").body == b"unset"
            with Checking(server.address) as tcp, Checking(Address(path=str(path))) as unix:
                for _ in range(2):
                    before = server.master
                    tcp.go_on()
                    server.tell(signal.SIGUSR2)
                    server.logged(f"taken over from process {before}")
                    tcp.go_on()
                    unix.go_on()
            server.stop()
        assert path.exists(), "the file is systemd's"
        # And the socket still listens: who connects now is the next start's.
        with socket.create_connection(web.getsockname(), 10):
            pass


HOOKS = """
import os
def write(line):
    with open("turns", "a") as file:
        file.write(f"{line} {os.getpid()}\\n")
def on_start(): write("on_start")
def post_fork(worker): write(f"post_fork {worker.number} {worker.pid} {worker.generation}")
def worker_start(worker): write(f"worker_start {worker.number}")
def worker_exit(worker): write(f"worker_exit {worker.number} {worker.pid} {worker.ending}")
def on_exit(): write("on_exit")
"""


def test_an_upgrade_keeps_the_sockets_of_systemd_that_no_option_names(operated):
    with (
        socket.create_server(("127.0.0.1", 0)) as passed,
        operated(prefix=["-c", ACTIVATE, str(passed.fileno())], pass_fds=[passed.fileno()]) as server,
    ):
        server.serves()
        server.tell(signal.SIGUSR2)
        server.logged("taken over from process")
        assert server.log.count("LISTEN_FDS: 1 socket from systemd not used") == 2
        assert server.get("/LISTEN_FDS").body == b"unset"


def test_each_hook_runs_in_its_process_at_its_time(operated, tmp_path):
    (tmp_path / "myhooks.py").write_text(HOOKS)
    with operated("--hooks", "myhooks") as server:
        server.serves()
        master = server.master
        worker = next(pid for pid in server.processes() if pid != master)
        os.kill(worker, signal.SIGKILL)
        server.logged("ready in", 2)
        second = next(pid for pid in server.processes() if pid != master)
        server.stop()
    assert (tmp_path / "turns").read_text().splitlines() == [
        f"on_start {master}",
        f"post_fork 1 {worker} 1 {worker}",
        f"worker_start 1 {worker}",
        f"worker_exit 1 {worker} SIGKILL {master}",
        f"post_fork 1 {second} 1 {second}",
        f"worker_start 1 {second}",
        f"worker_exit 1 {second} status 0 {master}",
        f"on_exit {master}",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_last_steps_of_python_does_not_change_the_status(operated, tmp_path, number):
    # timeout(1) signals twice, the second time perhaps when the server has just ended.
    (tmp_path / "myhooks.py").write_text(
        textwrap.dedent(f"""
            import os

            class Late:
                # Modules may be gone by then.
                master, own, kill = os.getpid(), os.getpid, os.kill

                def __del__(self, number={number:d}):
                    if Late.own() == Late.master:
                        Late.kill(Late.master, number)

            late = Late()
        """)
    )
    with operated("--hooks", "myhooks") as server:
        server.serves().stop()
        assert server.process.returncode == 0


@pytest.mark.parametrize("hook", ["on_start()", "post_fork(worker)", "worker_start(worker)"])
def test_a_hook_that_fails_at_the_start_stops_the_server(operated, tmp_path, hook):
    (tmp_path / "myhooks.py").write_text(f"def {hook}:\n    raise OSError('no database')\n")
    with operated("--hooks", "myhooks") as server:
        assert server.process.wait(30) == 3
        name = hook.partition("(")[0]
        assert f"error: the hook myhooks.{name} failed: OSError: no database" in server.log
        assert f'myhooks.py", line 2, in {name}' in server.log
        assert not (tmp_path / "app.pid").exists()


def test_a_second_server_with_the_same_pid_file_does_not_start(operated, tmp_path):
    with operated() as server:
        server.serves()
        done = tailrace("app:app", "--bind", "127.0.0.1:0", "--pidfile", "app.pid", cwd=tmp_path)
        assert done.returncode == 2
        assert f"process {server.process.pid} is already running; stop it (`kill {server.process.pid}`)" in done.stderr
        assert server.master == server.process.pid
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        # What it left is no hindrance.
        with Operated(tmp_path, "app:app") as another:
            another.serves()
            assert another.master == another.process.pid


def test_variables_reach_the_application_and_change_with_a_reload(operated, tmp_path):
    path = tmp_path / "app.env"
    path.write_text("GREETING='good day'\nGIVEN=file\nTAILRACE_WORKERS=2\n")
    with operated("--env-file", "app.env", environment={"GIVEN": "here"}) as server:
        server.serves().logged("with 2 workers")
        assert server.get("/GREETING").body == b"good day"
        assert server.get("/GIVEN").body == b"here"
        path.write_text("GREETING=hello\n")
        server.tell(signal.SIGHUP)
        server.logged("reload complete")
        # An old worker that drains may still answer.
        server.until(lambda: server.get("/GREETING").body == b"hello", "the new value")
        path.write_text("no variable\n")
        server.tell(signal.SIGHUP)
        server.logged("reload failed, the old workers keep serving")
        assert "line 1: not NAME=value" in server.log
        assert server.get("/GREETING").body == b"hello"


@pytest.fixture
def public(tmp_path):
    """A directory that every user may enter, with the application in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "app.py").write_text(APP)
        yield directory


def everybody_reads_python():
    """Whether nobody can run this Python; not so where it is below a home directory."""
    places = [Path(os.__file__), Path(sys.executable), *Path(sys.executable).parents, *Path(os.__file__).parents]
    return all(place.stat().st_mode & 0o005 for place in places)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator may change the user")
@pytest.mark.skipif(not everybody_reads_python(), reason="this Python is for its owner alone")
def test_the_whole_server_changes_its_user(public):
    nobody = pwd.getpwnam("nobody")
    (public / "app.env").write_text("SECRET=x\n")
    (public / "app.env").chmod(0o600)
    path, log = public / "app.sock", public / "server.log"
    arguments = ["--user", "nobody", "--env-file", "app.env", "--access-log", "access.log", "--log", "server.log"]
    with Operated(public, "app:app", *arguments, address=Address(path=str(path))) as server:

        def logged(*texts):
            server.until(lambda: log.exists() and all(each in log.read_text() for each in texts), f"{texts}")

        logged("ready in")
        identity = ((nobody.pw_uid,) * 3, (nobody.pw_gid,) * 3, os.getgrouplist("nobody", nobody.pw_gid))
        assert server.get("/ids").body.decode() == repr(identity)
        assert server.get("/USER").body == b"nobody"
        assert server.get("/SECRET").body == b"x"
        status = Path(f"/proc/{server.master}/status").read_text()
        assert f"Uid:\t{nobody.pw_uid}\t{nobody.pw_uid}\t{nobody.pw_uid}\t{nobody.pw_uid}\n" in status
        for name in ("app.sock", "app.pid", "access.log", "server.log"):
            assert (public / name).stat().st_uid == nobody.pw_uid, name
        for name in ("access.log", "server.log"):
            # As logrotate does with `create`: the user may make no files in this directory.
            (public / name).rename(public / f"{name}.1")
            (public / name).touch()
            os.chown(public / name, nobody.pw_uid, nobody.pw_gid)
        server.tell(signal.SIGUSR1)
        logged("SIGUSR1: log reopened", "SIGUSR1: access log reopened")
        server.get("/after")
        server.until(lambda: "/after" in (public / "access.log").read_text(), "the line in the new file")
        server.tell(signal.SIGHUP)
        logged("reload complete")
        assert server.get("/SECRET").body == b"x", "read before the user changed"
        (public / "app.env").write_text("SECRET=y\n")
        # New masters are nobody from the start. Each gets the values of its predecessor.
        for _ in range(2):
            before = server.master
            server.tell(signal.SIGUSR2)
            logged("gets the values that were read at the start", f"taken over from process {before}")
            assert server.master != before
            assert server.get("/SECRET").body == b"x"
            names = Path(f"/proc/{server.master}/fd").iterdir()
            assert not [each for each in names if "tailrace-variables" in os.readlink(each)]
        # What the name of the file links to does not matter, as in a reload.
        (public / "secret").mkdir(mode=0o700)
        (public / "app.env").rename(public / "secret" / "app.env")
        (public / "app.env").symlink_to("secret/app.env")
        before = server.master
        server.tell(signal.SIGUSR2)
        logged(f"taken over from process {before}")
        assert server.get("/SECRET").body == b"x"
        before = server.master
        (public / "secret").chmod(0o755)
        (public / "secret" / "app.env").write_text("SECRET=z\n")
        (public / "secret" / "app.env").chmod(0o644)
        server.tell(signal.SIGUSR2)
        logged(f"taken over from process {before}")
        assert server.get("/SECRET").body == b"z"
        server.stop()
        assert (public / "app.pid").read_text() == "", "it cannot be removed, so it is empty"


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator may change the user")
@pytest.mark.skipif(everybody_reads_python(), reason="every user can run this Python")
def test_a_user_who_cannot_run_this_python_is_told_so(public):
    with Operated(public, "app:app", "--user", "nobody") as server:
        assert server.process.wait(30) == 2
        assert "user nobody cannot read Python's own modules in" in server.log
        assert server.log.count("\n") == 1


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="a namespace of processes is the administrator's"
)
def test_as_process_1_it_reaps_stops_and_refuses_an_upgrade(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    address = free_address()
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "tailrace", "app:app"]
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen([*command, "--bind", address.bind], cwd=tmp_path, stderr=log, stdout=log)
        try:
            server = Operated.__new__(Operated)
            server.address, server.directory, server._log = address, tmp_path, tmp_path / "log"
            server.serves()
            assert ", process 1, serves" in server.log
            (master,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(master), signal.SIGUSR2)
            server.logged("process 1, because its container would stop")
            assert server.get("/1").body == Checking.body(1)
            os.kill(int(master), signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
