"""Three machines behind HAProxy on a fourth, with the configuration of deploy/: reloads, a stop, a crash, a cut link
and a busy node, while clients ask at a steady rate.

The machines are network namespaces. What a failure costs is a matter of requests, not of time: those that the dead node
had, and no other. The times that it took are printed (`pytest -s`).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from frameworks.process import DEADLINE, await_that, haproxy_rows
from harness.deployed import deployed
from harness.machines import Machines
from harness.server import APPS
from harness.tools import need_tool

HAPROXY = need_tool("haproxy")
CURL = need_tool("curl")
TESTS = Path(__file__).resolve().parents[1]
# Requests a second.
RATE = 150
# A request that a failure has held up takes longer than this (seconds); one takes 20 ms otherwise.
HELD_UP = 1.0


class Node:
    """A machine that serves, with the arguments that deploy/haproxy.cfg asks for."""

    def __init__(self, machines, number, directory):
        self.machines, self.number, self.directory = machines, number, directory
        self.name = machines.nodes[number - 1]
        directory.mkdir()
        self.start()

    def start(self):
        options = ["--workers", "1", "--threads", "4", "--graceful-timeout", "20"]
        addresses = ["--bind", ":8000", "--status", ":9000", "--haproxy-agent", ":9001"]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")}
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.machines.command(self.name),
                    sys.executable,
                    "-m",
                    "tailrace",
                    "fw_nodes:app",
                    *options,
                    *addresses,
                ],
                cwd=APPS,
                env={**clean, "PYTHONUNBUFFERED": "1", "NODE": f"node{self.number}", "STATE": str(self.directory)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self):
        return (self.directory / "log").read_text(errors="replace")

    def reload(self):
        """Returns when all workers are new."""
        before = self.log.count("ready in")
        self.process.send_signal(signal.SIGHUP)
        await_that(lambda: self.log.count("ready in") > before)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(DEADLINE) == 0, self.log

    def crash(self):
        self.machines.kill(self.name)
        self.process.wait()


class Clients:
    """`harness.steady` on the machine in front; `seen` are its lines once it has ended."""

    def __init__(self, machines):
        command = [*machines.command(machines.front), sys.executable, "-m", "harness.steady"]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            [*command, "127.0.0.1", "80", "/node", str(RATE)], cwd=TESTS, stdin=subprocess.PIPE, stdout=self._said
        )
        self.seen = []

    def __enter__(self):
        self.await_answers()
        return self

    def __exit__(self, *error):
        if error == (None, None, None):
            self.await_answers()
        self.process.communicate()
        with self._said:
            self._said.seek(0)
            self.seen = [json.loads(line) for line in self._said]
        assert self.process.returncode == 0
        assert len(self.seen) > RATE

    def await_answers(self, seconds=1.0):
        """Returns when as many more requests have ended as begin in this time."""

        def ended():
            return os.pread(self._said.fileno(), 1 << 30, 0).count(b"\n")

        wanted = ended() + seconds * RATE
        await_that(lambda: ended() >= wanted)

    @property
    def failed(self):
        return [each for each in self.seen if each["fault"]]

    def nodes(self, since):
        """How many requests that began later each node has answered."""
        return Counter(each.get("body") for each in self.seen if since <= each["begun"])

    def recovery(self, since):
        """Until when after `since` requests began that failed or were held up (seconds)."""
        times = [each["begun"] for each in self.seen if each["fault"] or each["ended"] - each["begun"] > HELD_UP]
        return max([0.0, *(begun - since for begun in times)])


@pytest.fixture(scope="module")
def machines():
    with Machines(3) as made:
        yield made


@pytest.fixture
def nodes(machines, tmp_path):
    made = [Node(machines, number, tmp_path / f"node{number}") for number in (1, 2, 3)]
    yield made
    for node in made:
        node.crash()


@pytest.fixture
def haproxy(machines, nodes, tmp_path):
    """HAProxy on the machine in front, once all three nodes are up; the path of its socket."""
    line = "    server node{0} 10.0.0.1{0}:8000 check port 9000 agent-check agent-port 9001\n".format
    changes = {"/run/haproxy/admin.sock": str(tmp_path / "admin"), "maxconn 20000": "maxconn 2000"}
    changes[line(2)] = line(2) + line(3)
    (tmp_path / "haproxy.cfg").write_text(deployed("haproxy.cfg", changes))
    with (tmp_path / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [*machines.command(machines.front), HAPROXY, "-db", "-f", tmp_path / "haproxy.cfg"], stdout=log, stderr=log
        )
    try:
        await_that(lambda: up(tmp_path / "admin") == {"node1", "node2", "node3"})
        yield tmp_path / "admin"
    finally:
        process.kill()
        process.wait()


def up(admin):
    """The nodes to which HAProxy gives their part of the requests: the clients themselves take some of the weight."""
    return {name for name, (status, weight) in rows(admin).items() if status == "UP" and int(weight) >= 30}


def rows(admin):
    """Status and weight of each node, as HAProxy tells them at its socket."""
    found = haproxy_rows(admin).values()
    return {row["svname"]: (row["status"], row["weight"]) for row in found if row["svname"].startswith("node")}


def test_a_rolling_reload_of_all_nodes_fails_no_request(machines, nodes, haproxy):
    with Clients(machines) as clients:
        for node in nodes:
            node.reload()
            clients.await_answers(0.5)
    assert clients.failed == []
    assert all(node.log.count("ready in") == 2 for node in nodes)


def test_a_crash_of_one_node_fails_only_what_it_had(machines, nodes, haproxy):
    with Clients(machines) as clients:
        before = time.monotonic()
        nodes[0].crash()
        crashed = time.monotonic()
        await_that(lambda: rows(haproxy)["node1"][0].startswith("DOWN"))
    print(f"\nfailed: {len(clients.failed)}; recovery: {clients.recovery(before):.2f} s")
    assert all(each["begun"] <= crashed and each["ended"] >= before for each in clients.failed), clients.failed
    # As many as it could run at once.
    assert len(clients.failed) <= 4
    assert set(clients.nodes(since=crashed)) == {"node2", "node3"}


def test_a_cut_link_fails_only_what_the_node_had(machines, nodes, haproxy):
    with Clients(machines) as clients:
        machines.cut(1)
        cut = time.monotonic()
        try:
            await_that(lambda: rows(haproxy)["node1"][0].startswith("DOWN"))
        finally:
            machines.join(1)
        joined = time.monotonic()
        await_that(lambda: up(haproxy) == {"node1", "node2", "node3"})
        again = time.monotonic()
    held_up = [each for each in clients.seen if each["ended"] - each["begun"] > HELD_UP]
    print(
        f"\nfailed: {len(clients.failed)}; held up: {len(held_up)} of {len(clients.seen)}; "
        f"recovery: {clients.recovery(cut):.2f} s; in use again after {again - joined:.2f} s"
    )
    assert all(each["begun"] <= cut for each in clients.failed), clients.failed
    assert "node1" in clients.nodes(since=again)
