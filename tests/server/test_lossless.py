"""Nothing is lost: reloads, recycling, upgrades and restarts under load, counted; deaths that only the clients of the
dead notice; overload that harms nobody who is let in."""

import contextlib
import os
import re
import signal
import socket

import pytest
from harness.addresses import Address, free_address
from harness.load import MIXED, Kind, Load, Wrk
from harness.operated import Operated
from harness.server import APPS, Server, children
from server.probes import asking, await_ready, eventually, is_stopped, ready, resident

APP = "srv_lossless:app"
STAYING = Kind("staying", shapes=("whole", "nap"), gives_up=True)
HOLDING = Kind("holding", pause=0.02, shapes=("held",))
TWENTY = Kind("twenty", shapes=("twenty",))


@contextlib.contextmanager
def under_load(address, directory):
    """wrk and the checking callers; a loss of either is a failure at the end, one of the callers' in between, too."""
    with Wrk(address, directory), Load(address) as load:
        load.goes_on()
        yield load
        load.goes_on()


# Replacing workers


def test_twenty_rolling_reloads(tmp_path):
    with Server(APP, workers=2, threads=8) as server:
        await_ready(server, 2)
        with under_load(server.address, tmp_path) as load:
            for turn in range(1, 21):
                server.send_signal(signal.SIGHUP)
                eventually(lambda: server.log.count("reload complete") == turn, f"reload {turn}", 30)  # noqa: B023
                load.goes_on()
        served = ready(server)
        # Each has replaced both.
        assert len(served) == len(set(served)) == 42
        eventually(lambda: set(children(server.process.pid)) == set(served[-2:]), "the old ones have ended")
    assert "ERROR" not in server.log


def test_reloads_while_calls_keep_the_interpreter():
    with Server(APP, workers=2, threads=8) as server:
        await_ready(server, 2)
        with Load(server.address, (*MIXED, HOLDING, HOLDING)) as load:
            for turn in range(1, 6):
                load.goes_on(1)
                server.send_signal(signal.SIGHUP)
                eventually(lambda: server.log.count("reload complete") == turn, f"reload {turn}", 30)  # noqa: B023
            load.goes_on(1)
    assert "ERROR" not in server.log


@pytest.mark.parametrize(
    ("options", "reason", "times"),
    [
        ({"max_requests": 60}, r"has processed (?:[6-9]\d|\d{3,}) requests \(--max-requests\)", 50),
        ({"max_lifetime": 0.5}, r"has reached its lifetime \(--max-lifetime\)", 8),
        ({"max_rss": "90MiB"}, r"MiB in memory \(--max-rss\).*; replacing it\n", 6),
    ],
    ids=["requests", "time", "memory"],
)
def test_workers_recycled(tmp_path, options, reason, times):
    with Server(APP, workers=2, threads=8, **options) as server:
        await_ready(server, 2)
        with under_load(server.address, tmp_path) as load:
            while len(re.findall(reason, server.log)) < times or len(ready(server)) < times + 2:
                if "max_rss" in options:
                    assert server.get("/grow/x/1").status == 200
                load.goes_on(1)
        assert len(set(ready(server))) >= times + 2
    assert "ERROR" not in server.log


# Replacing masters


def test_five_binary_upgrades(tmp_path):
    arguments = (APP, "--workers", "2", "--threads", "8")
    with Operated(tmp_path, *arguments, environment={"PYTHONPATH": str(APPS)}) as server:
        await_ready(server, 2)
        masters = [server.master]
        assert masters == [server.process.pid]
        with under_load(server.address, tmp_path) as load:
            for _ in range(5):
                server.tell(signal.SIGUSR2)
                server.logged(f"taken over from process {masters[-1]}")
                masters.append(server.master)
                load.goes_on()
        server.until(lambda: len(server.processes()) == 3, "the end of the old processes")
        assert len(set(masters)) == 6
        assert len(set(ready(server))) == 12
        assert set(server.processes()) == {masters[-1], *children(masters[-1])}
        server.stop()
    assert "ERROR" not in server.log


@contextlib.contextmanager
def listening(family, directory):
    """A socket that somebody else holds, as systemd does, and how clients reach it."""
    with socket.socket(family) as listener:
        address = Address(path=str(directory / "shared.sock")) if family == socket.AF_UNIX else free_address()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address.path or (address.host, address.port))
        listener.listen(2048)
        yield listener, address


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("overlapping", [True, False], ids=["the-new-one-first", "the-old-one-first"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
def test_five_restarts_behind_a_shared_socket(tmp_path, family, overlapping):
    with listening(family, tmp_path) as (listener, address), contextlib.ExitStack() as stack:
        shared = listener.fileno()

        def start():
            bind = ("--bind", f"fd://{shared}")
            server = stack.enter_context(Server(APP, *bind, address=address, pass_fds=[shared], threads=8))
            await_ready(server, 1)
            return server

        server = start()
        with Load(address) as load:
            for _ in range(5):
                load.goes_on()
                old, new = server, start() if overlapping else None
                assert old.stop() == 0
                server = new or start()
            load.goes_on()


# Deaths


@contextlib.contextmanager
def clients_of_each(server, workers):
    """A load for each worker, by its process number, on connections that stay where they are."""
    with contextlib.ExitStack() as stack:
        loads = {}
        for pid in workers:
            others = [other for other in workers if other != pid]
            for other in others:
                # So that no other process accepts the connections.
                os.kill(other, signal.SIGSTOP)
            for other in others:
                eventually(lambda pid=other: is_stopped(pid), "a worker that stands still")
            try:
                loads[pid] = stack.enter_context(Load(server.address, (STAYING,) * 5))
                loads[pid].goes_on(1)
            finally:
                for other in others:
                    os.kill(other, signal.SIGCONT)
            assert set(loads[pid].workers()) == {pid}
        yield loads


def carried(server, said, request, client):
    """True when a line that says this is followed by one with the request, and the client that asked for it."""
    found = re.search(rf"{said}; it was running \d+ requests?(\n  .*)+", server.log)
    assert found, server.log
    return re.search(rf"\n  GET {request} from 127\.0\.0\.1:{client}, for \d+\.\d+ s, in thread \d+", found[0])


@pytest.mark.parametrize(
    ("way", "ending"),
    [
        ("SIGKILL", "was killed by SIGKILL, possibly by the kernel, for lack of memory"),
        ("SIGSEGV", r"was killed by SIGSEGV(?: \(core dumped\))?"),
        ("exit", "exited with status 3"),
    ],
    ids=["SIGKILL", "SIGSEGV", "exit"],
)
def test_only_the_clients_of_a_dead_worker_notice(way, ending):
    with Server(APP, workers=2, threads=8) as server:
        first = await_ready(server, 2)
        with clients_of_each(server, first) as loads:
            with asking(server, f"/die/{way}") as asked:
                client = asked.sock.getsockname()[1]
                assert asked.rest() == b""
            await_ready(server, 3)
            (dead,) = set(first) - set(children(server.process.pid))
            eventually(lambda: loads[dead].excuse(dead) == 5, "the losses of its clients")
            for load in loads.values():
                load.goes_on()
            assert server.get("/whole/new/3").body == b"new"
        said = rf"ERROR: worker \d \(pid {dead}\) {ending}; replacing it"
        assert carried(server, said, f"/die/{way}", client)
        assert server.log.count("ERROR") == 1


def test_a_call_that_keeps_the_interpreter_costs_its_worker_and_no_other():
    with Server(APP, workers=2, threads=8, request_timeout=0.5, graceful_timeout=0.1) as server:
        first = await_ready(server, 2)
        with clients_of_each(server, first) as loads:
            with asking(server, "/die/hold") as asked:
                client = asked.sock.getsockname()[1]
                # It comes from the I/O side, which needs no interpreter.
                answer = asked.response()
                assert (answer.status, answer.connection) == (504, {"close"})
            await_ready(server, 3)
            eventually(lambda: len(set(first) & set(children(server.process.pid))) == 1, "the end of the stuck one")
            (stuck,) = set(first) - set(children(server.process.pid))
            eventually(lambda: loads[stuck].excuse(stuck) == 5, "the losses of its clients")
            for load in loads.values():
                load.goes_on()
        reason = "has a thread in which a request past its deadline does not end"
        said = rf"worker \d \(pid {stuck}\) {reason}; replacing it"
        assert carried(server, said, "/die/hold", client)
        said = rf"worker \d \(pid {stuck}\) did not end in time and is killed"
        assert carried(server, said, "/die/hold", client)


def test_a_loop_in_one_of_eight_threads_harms_nobody_else(tmp_path):
    with Server(APP, workers=2, threads=8, request_timeout=0.5) as server:
        first = await_ready(server, 2)
        with under_load(server.address, tmp_path) as load:
            for _ in range(3):
                with asking(server, "/die/loop") as asked:
                    assert asked.response().status == 504
                load.goes_on()
        assert ready(server) == first
        eventually(lambda: server.log.count("GET /die/loop: past its deadline") == 3, "three entries in the log")
    assert server.log.count("in loop\n") == 3


# Overload


def is_refusal(response):
    """Of the promised kind; the caller has read it to its end."""
    return response.status == 503 and response["retry-after"] == "1" and response.framing == "length"


def test_what_is_too_much_is_refused_whole_and_the_rest_is_served():
    with Server(APP, threads=2, max_queue=4) as server:
        with Load(server.address, (TWENTY,) * 40, allowed=is_refusal) as load:
            load.goes_on()
            before, had = resident(server), load.counts

            def is_enough():
                more = load.counts - had
                return more["other"] > 10 * more["answered"] > 500

            eventually(is_enough, "ten times as many refusals as answers")
            # A place for each refusal would be more.
            assert resident(server) - before < 4 << 20
        # No refusal has cost a connection.
        assert load.counts["connections"] == 40
        assert server.get("/whole/after/5").body == b"after"
