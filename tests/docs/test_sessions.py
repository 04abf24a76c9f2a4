"""The sessions of the manual run as they are printed: commands with their output, and logs.

Addresses and directories are those of the test. What differs from run to run, such as times and process ids, is left
out of the comparison.
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
from pathlib import Path

import pytest
from docs.sessions import SESSIONS
from docs.test_blocks import BLOCKS, simple_commands
from harness.addresses import free_address
from harness.pages import blocks, rows
from harness.server import await_listening
from harness.status import answer
from harness.tools import need_module, need_tool

from tailrace.command import cli

HERE = Path(__file__).parent
DEADLINE = 30.0
# What differs from run to run, with what replaces it.
VARYING = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", "TIME"),
    (r"\[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\]", "[TIME]"),
    (r"\bcurl/[\d.]+", "curl/VERSION"),
    (r"tailrace\[\d+\]", "tailrace[PID]"),
    (r"tailrace \d+\.\d+\.\d+\S*?(?=,|$)", "tailrace VERSION"),
    (r"\b(pid|process|thread) \d+", r"\1 N"),
    # Which thread is the first to have a request.
    (r"\btailrace-\d+", "tailrace-N"),
    (r"127\.0\.0\.1:(?!8000\b|9000\b)\d+", "127.0.0.1:PORT"),
    (r"\b\d+(\.\d+)? s\b", "N s"),
    (r"\bafter \d+ ms\b", "after N ms"),
    (r"\bline \d+", "line N"),
    (r"\.py:\d+", ".py:N"),
    (r"\d\.\d+e\+\d\d", "BYTES"),
    (r"(?<= )\d+\.\d{3}(?= )", "MS"),
    (r"\bdata: \d{10}\b", "data: SECONDS"),
    # Ids of events.
    (r"\b[0-9a-f]{16}-[0-9a-f]{6}\b", "ID"),
    (r"\b\d+ threads: 1 waiting, \d+ idle", "N threads: 1 waiting, N idle"),
    # Python 3.11 and newer mark the place in the line.
    (r"\n +[~^]+(?=\n)", ""),
]
USED = sorted(
    {(block.page, name) for block in BLOCKS for kind in ("run", "log") if (name := block.marked(kind)) is not None}
)


def steady(text):
    """The text without what differs from run to run."""
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return text.splitlines()


def serves(line):
    """Whether a command starts a server."""
    words = simple_commands(line)[-1]
    if Path(words[0]).name != "tailrace":
        return False
    return words[1:2] == [] or words[1] not in {*cli.commands, "help", "--help", "--version"}


def stand(wanted, lines):
    """Whether the lines stand there, one below the other; a line of three dots is for any others."""
    at = 0
    for part in "\n".join("..." if line.strip() == "..." else line for line in wanted).split("\n...\n"):
        part = part.removesuffix("\n...").split("\n")
        ends = [end for end in range(at + len(part), len(lines) + 1) if lines[end - len(part) : end] == part]
        if not ends:
            return False
        at = ends[0]
    return True


class Running:
    """A session that runs."""

    def __init__(self, name, page):
        self.session = SESSIONS[name]
        # A short path: UNIX sockets have room for 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="pst-"))
        self.app, self.run, self.bin = (self.directory / each for each in ("app", "run", "bin"))
        for each in (self.app, self.run, self.bin):
            each.mkdir()
        if self.session.application:
            shutil.copy(HERE / self.session.application, self.app / "shop.py")
        else:
            for block in blocks(page):
                if block.language == "python" and block.title:
                    (self.app / Path(block.title).name).write_text(block.text)
        for block in blocks(page):
            if block.title in self.session.files:
                (self.app / block.title).write_text(block.text)
        for name, text, *_ in rows(page, self.session.table) if self.session.table else ():
            (self.app / name.strip("`")).write_text(text.strip("`") + "\n")
        command = self.bin / "tailrace"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tailrace "$@"\n')
        command.chmod(0o755)
        self.address, self.status, self.publish = free_address(), free_address(), free_address()
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")}
        # As on a terminal, where curl shows no progress beside what it prints.
        (self.directory / ".curlrc").write_text("silent\nshow-error\n")
        self.environment |= {"CURL_HOME": str(self.directory)}
        self.environment |= {"PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
        self.started = []
        self.has_asked = False

    def __enter__(self):
        if self.session.start:
            self.serve(self.session.start)
        return self

    def __exit__(self, *_):
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def here(self, line):
        """A line of the page with the addresses and directories of this test."""
        line = line.replace("/srv/shop/venv/bin/tailrace", "tailrace")
        line = line.replace("/srv/shop/app", str(self.app)).replace("/run/shop", str(self.run))
        line = re.sub(rf"(?<=:){self.session.port}\b", str(self.address.port), line)
        line = re.sub(r"(?<=:)5561\b", str(self.publish.port), line)
        return re.sub(r"(?<=:)9000\b", str(self.status.port), line)

    def printed(self, text):
        """What was printed, with the addresses and directories of the page."""
        # curl says so if `head` ends before it.
        text = re.sub(r"^curl: \(23\) .*\n?", "", text, flags=re.MULTILINE)
        text = text.replace(sys.executable, "/srv/shop/venv/bin/python3")
        text = text.replace(str(self.app), "/srv/shop/app").replace(str(self.run), "/run/shop")
        text = re.sub(rf"\b{self.address.port}\b", str(self.session.port), text)
        return re.sub(rf"\b{self.status.port}\b", "9000", text)

    @property
    def log(self):
        return self.printed((self.directory / "log").read_text(errors="replace"))

    def start(self, *command, **given):
        process = subprocess.Popen(
            command, cwd=self.app, env=self.environment, stdin=subprocess.DEVNULL, start_new_session=True, **given
        )
        self.started.append(process)
        return process

    def command(self, line):
        """The command line, with this test's address for a server."""
        bind = "" if "--bind" in line or not serves(line) else f" --bind {self.address.bind}"
        more = f" {' '.join(self.session.more)}" if serves(line) else ""
        return self.here(line) + bind + more

    def serve(self, line):
        """Starts a server, and waits until it serves."""
        with (self.directory / "log").open("ab") as log:
            process = self.start("bash", "-c", self.command(line), stdout=log, stderr=log)
        await_listening(process, self.address, lambda: self.log, DEADLINE)
        found = re.search(r"--workers (\d+)", line)
        self.await_lines(lambda: self.log.count(" ready in ") >= int(found[1] if found else 1), "a server that serves")
        if "--status" in line:
            await_listening(process, self.status, lambda: self.log, DEADLINE)
        for path in self.session.meanwhile:
            self.start("curl", "-s", self.address.url + path, stdout=subprocess.DEVNULL)
        if self.session.queued is not None:
            wanted = self.session.queued
            self.await_lines(lambda: answer(self.status, "/status.json")["totals"]["queued"] == wanted, "the queue")

    def await_lines(self, condition, what):
        until = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > until:
                pytest.fail(f"not within {DEADLINE:g} s: {what}\n--- the log\n{self.log}")
            time.sleep(0.02)

    def compare_log(self, expected):
        """The lines stand in the log, one below the other."""
        wanted = steady(expected)
        if not wanted:
            return

        def is_logged():
            return stand(wanted, [re.sub(r"^TIME tailrace\[PID\] ", "", line) for line in steady(self.log)])

        self.await_lines(is_logged, "\n".join(wanted))

    def do(self, command):
        """Runs a command of a block, and compares what it prints."""
        if command.line.startswith("export "):
            name, _, value = self.here(command.line.removeprefix("export ")).partition("=")
            self.environment[name] = value
        elif command.line.startswith("cd "):
            assert self.here(command.line) == f"cd {self.app}"
        elif serves(command.line) and not "".join(command.printed).startswith("tailrace: error"):
            self.serve(command.line)
            self.compare_log("\n".join(re.sub(r"^\S+ tailrace\[\d+\] ", "", line) for line in command.printed))
        else:
            need_tool(simple_commands(command.line)[0][0]) if "tailrace" not in command.line else None
            done = subprocess.run(
                ["bash", "-c", self.command(command.line)],
                cwd=self.app,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
            if command.printed and command.printed[-1].strip() == "...":
                assert stand(steady("\n".join(command.printed)), steady(self.printed(done.stdout))), done.stdout
            elif command.printed:
                assert steady(self.printed(done.stdout)) == steady("\n".join(command.printed)), command.line
            else:
                assert (done.returncode, done.stdout) == (0, ""), command.line

    def follow(self, block):
        """Does what a block shows."""
        if block.marked("log") is None:
            for command in block.commands:
                self.do(command)
            return
        if not self.has_asked:
            self.has_asked = True
            for path in self.session.before_log:
                subprocess.run(["curl", "-s", "-m", "30", self.address.url + path], capture_output=True, check=False)
        self.compare_log(block.text)


@pytest.mark.parametrize(("page", "name"), USED, ids=[f"{page.stem}-{name}" for page, name in USED])
def test_a_session_prints_what_its_page_says(page, name):
    for module in SESSIONS[name].modules:
        need_module(module)
    need_tool("curl")
    with Running(name, page) as running:
        for block in blocks(page):
            if name in (block.marked("run"), block.marked("log")):
                running.follow(block)


def test_every_session_is_that_of_one_page():
    assert sorted(SESSIONS) == sorted(name for _, name in USED)


def test_what_varies_is_left_out_and_nothing_else():
    line = "2026-11-24T20:00:00+0000 tailrace[4711] INFO: worker 1 (pid 4712) ready in 0.21 s"
    assert steady(line) == ["TIME tailrace[PID] INFO: worker 1 (pid N) ready in N s"]
    assert steady("/ 200 14 0.214 0.141 0.000 one-write complete") == ["/ 200 14 MS MS MS one-write complete"]
    assert stand(["a", "  ...", "c"], ["a", "b", "c"])
    assert stand(["b", "..."], ["a", "b", "c"])
    assert not stand(["a", "c"], ["a", "b", "c"])
    assert not stand(["c", "...", "a"], ["a", "b", "c"])
    assert steady("<div>503 at 127.0.0.1:8000</div>") == ["<div>503 at 127.0.0.1:8000</div>"]
