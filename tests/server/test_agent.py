"""`--haproxy-agent`: a server tells how much it can take. What it tells while workers hang, start, drain or are
replaced is checked beside what `--status` says, in test_status.py."""

import re

from harness.addresses import Address, free_address
from harness.server import Server, children
from harness.status import reachable
from server.probes import asking
from server.test_status import APP, says


def test_the_weight_is_what_threads_are_free(tmp_path):
    at = free_address()
    with Server(APP, "--threads", "4", haproxy_agent=at) as server:
        says(at, "ready up 100%")
        target = f"/wait?gate={tmp_path}/gate&entered={tmp_path}/"
        clients = [asking(server, f"{target}{number}") for number in range(3)]
        says(at, "ready up 25%")
        clients += [asking(server, f"{target}{number}") for number in range(3, 12)]
        says(at, "ready up 1%")
        (tmp_path / "gate").touch()
        for client in clients:
            with client:
                assert client.response().body == b"waited"
        says(at, "ready up 100%")


def test_it_needs_no_status_and_answers_beside_one(tmp_path):
    at, status = Address(path=str(tmp_path / "agent.sock")), free_address()
    for options in ({}, {"status": status}):
        with Server(APP, haproxy_agent=at, **options) as server:
            says(at, "ready up 100%")
            assert reachable(status) == bool(options)
            assert len(children(server.process.pid)) == 2
        assert not (tmp_path / "agent.sock").exists()
        assert re.search(rf"agent on {at.bind} \(mode \d+\) \(process ", server.log)
