"""The blocks of docs/incidents.md run as they are printed, in a shell, with gunicorn and with Tailrace.

Ports and directories are those of the test, and long timeouts are short here. What differs from run to run, such as
process IDs, is left out of the comparison.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from docs.test_sessions import stand, steady
from frameworks.process import nginx
from harness.addresses import free_address
from harness.pages import DOCS, blocks
from harness.server import children
from harness.tools import need_module, need_tool

HERE = Path(__file__).parent
PAGE = DOCS / "incidents.md"
DEADLINE = 60.0
BLOCKS = [block for block in blocks(PAGE) if block.marked("incident") not in (None, "start")]
SERVERS = ("gunicorn", "tailrace")
# A command line that starts a server in the background.
STARTS = re.compile(r"(gunicorn|tailrace) .* &$")
# What a reader waits for, with what the test waits for.
SHORTER = [
    ("--timeout 30", "--timeout 3"),
    ("--request-timeout 30", "--request-timeout 1"),
    ("--graceful-timeout 20", "--graceful-timeout 1"),
    ("-m 60", "-m 5"),
]
# In addition to what differs in the sessions of other pages.
VARYING = [
    (r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\] \[\d+\] (?=\[)", ""),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} tailrace\[\d+\] ", ""),
    (r"\bpid: ?\d+", "pid: N"),
    (r"\bworker \d+ \(", "worker N ("),
    (r"\bafter \d+ milliseconds\b", "after N milliseconds"),
    (r"\b\d+ ms\b", "N ms"),
    (r"(?m)^ +\d+ (?=\d{3}$)", "N "),
]
# As in guides/nginx.md, with the buffers that are the default.
SITE = """
upstream shop {
    server %s;
    keepalive 32;
}
server {
    listen %s;
    location / {
        proxy_pass http://shop;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
    }
}
"""
# Notes which workers have loaded the application; not in the log, where a reader would not see it.
CONFIGURATION = """
bind = {bind!r}


def post_worker_init(worker):
    open(f"loaded-{{worker.pid}}", "w").close()
"""


def without_what_varies(text):
    """The lines of the text, without what differs from run to run."""
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return steady(text)


def start_commands():
    """The commands that start the servers, by the name of the server."""
    (block,) = [block for block in blocks(PAGE) if block.marked("incident") == "start"]
    return {command.line.split()[0]: command.line for command in block.commands}


def established(port):
    """The inodes of the connections to a server at this port; "0" for each that it has not accepted yet."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]


def clients(pid, inodes):
    """How many of these connections a process has."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(path))
    return sum(f"socket:[{inode}]" in found for inode in inodes)


class Terminal:
    """A shell in the directory of the application, in which the commands of one block run."""

    def __init__(self):
        # A short path: UNIX sockets have room for 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="pst-"))
        self.app = self.directory / "app"
        self.app.mkdir()
        self.address, self.front = free_address(), free_address()
        shutil.copy(HERE / "shop_incidents.py", self.app / "shop.py")
        (self.app / "gunicorn.conf.py").write_text(CONFIGURATION.format(bind=self.address.bind))
        (self.app / "photo.jpg").write_bytes(bytes(range(256)) * 4000)
        for name in ("gunicorn", "tailrace"):
            command = self.directory / name
            command.write_text(f'#!/bin/sh\nexec {sys.executable} -m {name} "$@"\n')
            command.chmod(0o755)
        # As on a terminal, where curl shows no progress beside what it prints.
        (self.directory / ".curlrc").write_text("silent\nshow-error\n")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("TAILRACE_", "GUNICORN_"))}
        # gunicorn's control socket is in the home directory.
        clean |= {"HOME": str(self.directory), "CURL_HOME": str(self.directory), "PYTHONUNBUFFERED": "1"}
        clean |= {"PATH": f"{self.directory}:{os.environ['PATH']}", "TAILRACE_BIND": self.address.bind}
        (self.directory / "log").touch()
        with (self.directory / "output").open("ab") as output:
            self.shell = subprocess.Popen(
                ["bash"],
                cwd=self.app,
                env=clean,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                text=True,
            )
        self.count = 0
        self.is_gunicorn = False
        self.begun = {"output": 0, "log": 0}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.stdin.close()
        self.shell.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def text(self, name, begun=0):
        """What is in the file, from this byte, with the ports and directories of the page."""
        path = self.directory / name
        text = path.read_bytes()[begun:].decode(errors="replace")
        # Another thread of gunicorn's master logs this, at any time, and sometimes twice.
        text = re.sub(r".*Control socket listening.*\n", "", text)
        text = text.replace(str(self.app), "/srv/shop/app")
        text = re.sub(rf"\b{self.address.port}\b", "8000", text)
        return re.sub(rf"\b{self.front.port}\b", "8080", text)

    @property
    def output(self):
        """All that commands have printed."""
        return self.text("output")

    @property
    def logged(self):
        """What the server has logged since the last command began."""
        return self.text("log", self.begun["log"])

    def await_that(self, condition, what):
        """Waits until a condition is true."""
        until = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > until or self.shell.poll() is not None:
                pytest.fail(f"did not happen: {what}\n--- printed\n{self.output}\n--- logged\n{self.text('log')}")
            time.sleep(0.02)

    def run(self, line):
        """Runs a command line; returns when it has ended or, if it is in the background, has begun its work."""
        for long, short in SHORTER:
            line = line.replace(long, short)
        front = "127.0.0.1:8080" in line
        line = line.replace("127.0.0.1:8000", self.address.bind).replace("127.0.0.1:8080", self.front.bind)
        if STARTS.match(line):
            line = f"{line[:-2]} >>../log 2>&1 &"
        self.begun = {name: (self.directory / name).stat().st_size for name in ("output", "log")}
        self.count += 1
        done = self.directory / f"done-{self.count}"
        self.shell.stdin.write(f"{line}\n: > {done}\n")
        self.shell.stdin.flush()
        self.await_that(done.exists, line)
        port = (self.front if front else self.address).port
        if "seq 40" in line:
            self.await_that(lambda: len(established(port)) >= 40, "40 clients")
            if self.is_gunicorn and not front:
                self.await_that(lambda: "0" not in established(port), "all clients are accepted")
                inodes = established(port)
                workers = children(int((self.app / "shop.pid").read_text()))
                if min(clients(pid, inodes) for pid in workers) < 4:
                    # On a busy machine, one worker may have accepted almost all.
                    self.run(line)
        elif "until" in line:
            self.await_that(lambda: established(port), "a client")
        elif "events.txt" in line:
            # The shell makes it some time after it has started the job.
            events = self.app / "events.txt"
            self.await_that(lambda: events.exists() and events.stat().st_size, "an event")

    def serve(self, line):
        """Starts a server; returns when both workers have loaded the application."""
        self.run(line)
        self.is_gunicorn = line.startswith("gunicorn")
        if self.is_gunicorn:
            self.await_that(lambda: len(list(self.app.glob("loaded-*"))) == 2, "two workers of gunicorn")
            self.await_that(lambda: self.text("log").count("Booting worker") == 2, "the last line of its start")
        else:
            self.await_that(lambda: self.text("log").count(" ready in ") == 2, "two workers of Tailrace")

    def expect(self, line, *lines):
        """Runs a command line, and waits until these lines have been printed and logged."""
        self.run(line)
        wanted = without_what_varies("\n".join(lines).removeprefix("...\n"))
        if not wanted:
            return
        until = time.monotonic() + DEADLINE
        while lines[0].startswith("curl: (7)") and not self.has(wanted) and time.monotonic() < until:
            # The server takes a moment to exit.
            self.run(line)
        self.await_that(lambda: self.has(wanted), f"{line}\n" + "\n".join(wanted))

    def has(self, wanted):
        """Whether the lines stand in what the last command has printed and what has been logged since."""
        printed, logged = (self.text(name, begun) for name, begun in self.begun.items())
        # A command may print its last line long after the server has logged something.
        return any(stand(wanted, without_what_varies(text)) for text in (printed + logged, logged + printed))

    def follow(self, block, change=("", "")):
        """Runs the commands of a block, and compares what they print with the block.

        change: text of the commands, and what replaces it.
        """
        server = block.marked("incident").split(", ")[1]
        assert any(change[0] in each.line for each in block.commands)
        commands = [(each.line.replace(*change), each.printed) for each in block.commands]
        if STARTS.match(commands[0][0]):
            self.serve(commands.pop(0)[0])
        elif server not in commands[0][0]:
            self.serve(start_commands()[server])
        for line, printed in commands:
            self.expect(line, *printed)


@pytest.fixture
def terminal():
    need_module("gunicorn")
    need_tool("curl")
    with Terminal() as terminal:
        yield terminal


@pytest.fixture
def front(terminal):
    """nginx at port 8080 of the page."""
    with nginx(terminal.front, SITE % (terminal.address.bind, terminal.front.bind)) as front:
        yield front


def block_of(name):
    (found,) = [block for block in BLOCKS if block.marked("incident") == name]
    return found


# Those that no test below runs.
ALONE = [block for block in BLOCKS if block.marked("incident").split(", ")[0] not in ("reload", "hang", "stream")]


@pytest.mark.parametrize("block", ALONE, ids=lambda block: block.marked("incident").replace(", ", "-"))
def test_a_block_shows_what_happens(terminal, block):
    if "doctor" in block.text:
        need_module("tailrace_tools")
    terminal.follow(block)


def test_every_incident_is_shown_with_both_servers():
    shown = {tuple(block.marked("incident").split(", ")) for block in BLOCKS}
    names = {name for name, _ in shown} - {"doctor", "reload"}
    assert shown == {(name, server) for name in names for server in SERVERS} | {
        ("doctor", "tailrace"),
        # A test below runs its commands with Tailrace.
        ("reload", "gunicorn"),
    }


def test_the_page_names_the_version():
    need_module("gunicorn")
    assert f"gunicorn {version('gunicorn')}" in PAGE.read_text()


# A deploy that does not load

FAILED = "[ERROR] Worker (pid:1) exited with code 3."


def test_a_second_master_of_gunicorn_that_fails_leaves_the_first_one_serving(terminal):
    terminal.serve(start_commands()["gunicorn"])
    terminal.run(block_of("deploy, gunicorn").commands[0].line)
    terminal.expect('kill -USR2 "$(cat shop.pid)"', "KeyError: 'PAYMENT_KEY'", "...", FAILED)
    terminal.expect("curl http://127.0.0.1:8000/", "Hello, World!")


# A request hangs


def test_a_request_that_hangs_ends_with_tailrace(terminal):
    terminal.follow(block_of("hang, tailrace"))
    terminal.expect("curl http://127.0.0.1:8000/", "Hello, World!")


def test_gthread_logs_nothing_of_a_request_that_hangs(terminal):
    terminal.follow(block_of("hang, gunicorn"))
    assert terminal.logged == ""


def test_sync_workers_are_replaced_when_a_request_hangs(terminal):
    start, ask = block_of("hang, gunicorn").commands
    terminal.serve(start.line.replace("--worker-class gthread --threads 4", "--worker-class sync"))
    terminal.expect(
        ask.line.replace("-m 60 ", ""),
        "    <h1><p>Internal Server Error</p></h1>",
        "...",
        "[CRITICAL] WORKER TIMEOUT (pid:1)",
        "...",
        '  File "/srv/shop/app/shop.py", line 1, in order',
        "    reserve()",
        "...",
        "[INFO] Booting worker with pid: 1",
    )


# Slow clients

DOWNLOAD = ("--data-binary @photo.jpg http://127.0.0.1:8000/upload", "-o /dev/null http://127.0.0.1:8000/photo")


@pytest.mark.parametrize("server", SERVERS)
def test_slow_downloads_do_what_slow_uploads_do(terminal, server):
    terminal.follow(block_of(f"upload, {server}"), DOWNLOAD)


@pytest.mark.parametrize("change", [("", ""), DOWNLOAD], ids=["upload", "download"])
def test_slow_clients_behind_nginx_occupy_no_thread_of_gunicorn(terminal, front, change):
    line = block_of("upload, gunicorn").commands[0].line.replace(*change)
    terminal.serve(start_commands()["gunicorn"])
    terminal.run(line.replace(":8000", ":8080"))
    terminal.expect("curl http://127.0.0.1:8080/", "Hello, World!")


# A reload behind nginx


def test_gunicorn_keeps_idle_connections_open_for_as_long_as_the_page_says():
    linger = need_module("gunicorn.workers.gthread").STOP_KEEPALIVE_LINGER
    assert f"keeps idle connections open for {linger:g} s" in PAGE.read_text()


RELOADED = {
    "gunicorn": block_of("reload, gunicorn").commands[1].printed,
    "tailrace": ("INFO: reload complete in 1 s",),
}


# On a machine at rest: an old worker of gunicorn waits no longer than 2 s for what nginx has begun to send.
@pytest.mark.parametrize("server", [pytest.param("gunicorn", marks=pytest.mark.nightly), "tailrace"])
def test_a_reload_behind_nginx_loses_no_request(terminal, front, server):
    load, reload, end = block_of("reload, gunicorn").commands
    terminal.serve(start_commands()[server])
    terminal.run(load.line)
    for _ in range(3):
        terminal.expect(reload.line, *RELOADED[server])
    terminal.expect(end.line, *end.printed)
    counts = re.findall(r"^ *(\d+) (\d{3})$", terminal.output, re.MULTILINE)
    assert [status for _, status in counts] == ["200"], terminal.output


WHILE_LOADING = {
    "gunicorn": ("curl: (28) Operation timed out after 1 milliseconds with 0 bytes received",),
    "tailrace": ("Hello, World!",),
}
BEGUN = {
    "gunicorn": ("[INFO] Worker exiting (pid: 1)", "...", "[INFO] Worker exiting (pid: 1)"),
    "tailrace": ("INFO: SIGHUP: replacing the workers",),
}


@pytest.mark.parametrize("server", SERVERS)
def test_only_old_workers_of_tailrace_serve_while_new_code_loads(terminal, server):
    terminal.serve(start_commands()[server])
    terminal.run("echo 'time.sleep(30)' >> shop.py")
    terminal.expect('kill -HUP "$(cat shop.pid)"', *BEGUN[server])
    terminal.expect("curl -m 2 http://127.0.0.1:8000/", *WHILE_LOADING[server])


# A deploy during an event stream


def test_gunicorn_kills_a_worker_that_has_said_it_exits(terminal):
    terminal.follow(block_of("stream, gunicorn"))
    exiting, killed = (
        set(re.findall(pattern, terminal.logged))
        for pattern in (r"Worker exiting \(pid: (\d+)\)", r"WORKER TIMEOUT \(pid:(\d+)\)")
    )
    assert exiting & killed


def test_tailrace_cuts_a_stream_that_outlasts_a_reload(terminal):
    terminal.follow(block_of("stream, tailrace"))
    assert "killed" not in terminal.logged
