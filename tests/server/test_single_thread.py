"""`--debug`: one thread does everything, and also waits for a slow client."""

import os
import signal
import subprocess
from contextlib import ExitStack

import pytest
from harness.server import Server
from harness.tools import need_tool
from server.probes import PATTERN, asking, digest, request, taken

SIZE = 40 * len(PATTERN)


@pytest.fixture
def debugging():
    with Server("srv_shapes:app", "--debug") as server:
        yield server


def test_a_slow_client_gets_all_of_a_long_generator_and_a_signal_ends_its_wait(debugging):
    target = f"/generator?size={SIZE}&block=50000&length={SIZE}"
    with asking(debugging, target) as client:
        assert taken(client, client.head()) == digest(PATTERN * (SIZE // len(PATTERN)))
        client.send(request(target))
        client.head()
        debugging.send_signal(signal.SIGINT)
        assert debugging.logged("SIGINT: finishing the requests in flight")
        debugging.send_signal(signal.SIGTERM)
        assert debugging.wait() == 0


def test_connections_that_close_after_their_request_cost_few_calls(debugging, tmp_path):
    # The server finds all of them with their requests when it goes on, and answers them before it waits again.
    path, count = tmp_path / "calls", 20
    command = [need_tool("strace"), "-f", "-p", str(debugging.pid), "-e", "trace=accept4,epoll_ctl", "-o", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer, ExitStack() as stack:
        assert b"attached" in tracer.stderr.readline()
        os.kill(debugging.pid, signal.SIGSTOP)
        clients = [stack.enter_context(debugging.client()) for _ in range(count)]
        for client in clients:
            client.send(request("/", "Connection: close"))
        os.kill(debugging.pid, signal.SIGCONT)
        for client in clients:
            assert client.response().body == b"pong"
            client.at_end(clean=True)
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=20)
    calls = path.read_text().splitlines()
    assert not any("EAGAIN" in call for call in calls), "accept4 finds a client each time"
    assert sum("accept4(" in call for call in calls) >= count
    assert sum("EPOLL_CTL_ADD" in call for call in calls) < count / 2, "they are not registered with the poller"
