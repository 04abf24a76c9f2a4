"""`--agent`: a server tells how much it can take, whatever its workers do."""

import os
import signal
import socket

from harness.addresses import Address, free_address
from harness.server import Server, children
from harness.status import reachable
from server.probes import asking, eventually, told

APP = "srv_processes:app"


def line(address):
    with address.connect() as client:
        return b"".join(iter(lambda: client.recv(100), b"")).decode().rstrip("\n")


def start(*arguments, at=None, **options):
    at = at or free_address()
    return Server(APP, *arguments, agent=at, **options), at


def says(address, text, deadline=10.0):
    eventually(lambda: line(address) == text, f"the agent says {text}", deadline)


def test_the_weight_is_what_threads_are_free(tmp_path):
    server, at = start("--threads", "4")
    with server:
        says(at, "ready up 100%")
        target = f"/wait?gate={tmp_path}/gate&entered={tmp_path}/"
        clients = [asking(server, f"{target}{number}") for number in range(3)]
        with clients[0], clients[1], clients[2]:
            says(at, "ready up 25%")
            others = [asking(server, f"{target}{number}") for number in range(3, 12)]
            says(at, "ready up 1%")
            (tmp_path / "gate").touch()
            for client in [*clients, *others]:
                with client:
                    assert client.response().body == b"waited"
        says(at, "ready up 100%")


def test_it_is_told_while_every_worker_is_stuck_and_down_when_they_hang(tmp_path):
    server, at = start("--hang-timeout", "5")
    with server:
        says(at, "ready up 100%")
        with asking(server, f"/stuck?keeps=1&entered={tmp_path}/entered") as client:
            eventually((tmp_path / "entered").exists, "the request in flight")
            assert line(at).startswith("ready up ")
            says(at, "down #1 of 1 workers are hung, and none is serving")
            says(at, "ready up 100%", 60)
            client.rest()


def test_it_drains_from_the_signal_to_the_end(tmp_path):
    server, at = start()
    with server:
        says(at, "ready up 100%")
        with asking(server, f"/wait?gate={tmp_path}/gate&entered={tmp_path}/entered") as client:
            eventually((tmp_path / "entered").exists, "the request in flight")
            server.send_signal(signal.SIGTERM)
            says(at, "drain")
            (tmp_path / "gate").touch()
            assert client.response().body == b"waited"
        assert server.wait() == 0
    assert not reachable(at)


def test_it_is_down_until_a_worker_serves(tmp_path):
    (tmp_path / "slow").touch()
    server, at = start(environment={"STATE": str(tmp_path)})
    with server:
        assert line(at) == "down #starting: no worker is ready yet"
        (tmp_path / "slow").unlink()
        says(at, "ready up 100%")


def test_it_needs_no_status_and_answers_beside_one(tmp_path):
    path, status = tmp_path / "agent.sock", free_address()
    for options in ({}, {"status": status}):
        server, at = start(at=Address(path=str(path)), **options)
        with server:
            says(at, "ready up 100%")
            assert reachable(status) == bool(options)
            assert len(children(server.process.pid)) == 2
        assert not path.exists()
        assert f"agent on unix:{path} (process " in server.log


def test_it_answers_again_when_its_process_was_killed():
    server, at = start()
    with server:
        says(at, "ready up 100%")
        worker = told(server, "/")["pid"]
        (other,) = (each for each in children(server.process.pid) if each != worker)
        os.kill(other, signal.SIGKILL)
        assert server.logged(f"the status process (pid {other}) was killed by SIGKILL; replacing it")
        says(at, "ready up 100%")


def test_an_upgrade_leaves_it_up():
    server, at = start()
    with server:
        says(at, "ready up 100%")
        server.send_signal(signal.SIGUSR2)
        heard = set()
        while "stopped" not in server.log:
            heard.add(line(at).removeprefix("ready "))
        assert server.wait() == 0
        successor = int(server.log.rpartition("USR2: process ")[2].split()[0])
        try:
            assert heard <= {f"up {percent}%" for percent in range(1, 101)}
            says(at, "ready up 100%")
        finally:
            os.kill(successor, signal.SIGTERM)
        eventually(lambda: not reachable(at), "the end of the successor")


def test_an_address_in_use_is_a_warning():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with Server(APP, agent=f"127.0.0.1:{taken.getsockname()[1]}") as server:
            assert told(server, "/")["pid"]
    assert server.log.count("WARNING: --agent: cannot listen on ") == 1
    assert "or choose another port with --agent; the server starts without it" in server.log
