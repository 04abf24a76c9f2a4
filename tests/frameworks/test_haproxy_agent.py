"""HAProxy with the configuration of deploy/ before two nodes: the agent moves requests away from a node that is busy,
and away from one that stops or does not serve, without a failed request."""

import signal
from collections import Counter

import httpx
import pytest
from frameworks.process import Process, await_that, haproxy_rows
from harness import fronts
from harness.addresses import free_address
from harness.fronts import Upstream
from harness.operated import Checking
from harness.server import Server
from harness.tools import need_tool
from harness.wire import Client
from server.probes import asking

need_tool("haproxy")
APP = "fw_nodes:app"


class Node:
    """The addresses of a node, and the server there."""

    def __init__(self, directory):
        self.address, self.status, self.agent = free_address(), free_address(), free_address()
        self.state = directory
        directory.mkdir()

    def start(self):
        return Server(
            *(APP, "--threads", "4"),
            address=self.address,
            status=self.status,
            haproxy_agent=self.agent,
            environment={"STATE": str(self.state)},
        )

    def waiting(self, count):
        """Requests that hold as many threads of the node, and let them go at `release`."""
        clients = []
        for number in range(count):
            entered = self.state / f"entered{number}"
            clients.append(asking(self, f"/wait?gate={self.state}/gate&entered={entered}"))
            await_that(entered.exists)
        return clients

    def client(self, deadline):
        return Client(self.address, deadline)

    def release(self, clients):
        (self.state / "gate").touch()
        for client in clients:
            with client:
                assert client.response().body == b"waited"


@pytest.fixture
def nodes(tmp_path):
    return [Node(tmp_path / "node1"), Node(tmp_path / "node2")]


@pytest.fixture
def haproxy(nodes):
    listen = free_address()
    made = fronts.haproxy(listen, *(Upstream("http", node.address, node.status, node.agent) for node in nodes))
    command = (need_tool(made.executable), *made.arguments)
    with Process(*command, address=listen, files=made.files, statuses=made.statuses) as process:
        yield process


def stats(haproxy, node):
    """HAProxy's own figures of a node."""
    return haproxy_rows(haproxy.directory / "admin")["tailrace", node]


def serving(haproxy, *names):
    for name in names:
        await_that(lambda name=name: stats(haproxy, name)["status"] == "UP" and stats(haproxy, name)["weight"] == "100")


def asked(haproxy, times=60):
    """How many requests each process has answered."""
    with httpx.Client(base_url=haproxy.url, timeout=20.0, trust_env=False, verify=False) as client:
        return Counter(client.get("/who").text for _ in range(times))


def test_a_busy_node_gets_less(nodes, haproxy):
    with nodes[0].start() as first, nodes[1].start():
        serving(haproxy, "node1", "node2")
        assert min(asked(haproxy).values()) >= 20
        clients = nodes[0].waiting(3)
        # Three of its four threads are taken.
        await_that(lambda: stats(haproxy, "node1")["weight"] == "25")
        await_that(lambda: stats(haproxy, "node2")["weight"] == "100")
        assert asked(haproxy)[str(first.pid)] <= 20
        nodes[0].release(clients)
        await_that(lambda: stats(haproxy, "node1")["weight"] == "100")


def test_a_node_that_stops_drains_and_no_request_fails(nodes, haproxy):
    with nodes[1].start() as second:
        with nodes[0].start() as first:
            serving(haproxy, "node1", "node2")
            with Checking(haproxy.address) as clients:
                clients.go_on()
                held = nodes[0].waiting(1)
                first.send_signal(signal.SIGTERM)
                await_that(lambda: stats(haproxy, "node1")["status"].startswith("DRAIN"))
                clients.go_on()
                nodes[0].release(held)
                assert first.wait() == 0
                clients.go_on()
            assert not clients.faults
            assert set(asked(haproxy)) == {str(second.pid)}
        # Its successor ends the drain.
        (nodes[0].state / "gate").unlink()
        with nodes[0].start():
            serving(haproxy, "node1")
            assert len(asked(haproxy)) == 2


def test_a_node_whose_workers_cannot_load_is_down(nodes, haproxy):
    (nodes[0].state / "slow").touch()
    with nodes[1].start() as second, nodes[0].start():
        serving(haproxy, "node2")
        await_that(lambda: stats(haproxy, "node1")["agent_status"] == "L7STS")
        row = stats(haproxy, "node1")
        assert row["status"].startswith("DOWN")
        assert row["last_agt"] == "via agent : down (starting: no worker is ready yet)"
        assert set(asked(haproxy)) == {str(second.pid)}
        (nodes[0].state / "slow").unlink()
        serving(haproxy, "node1")
