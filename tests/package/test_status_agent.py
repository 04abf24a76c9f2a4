"""The thread that answers `--haproxy-agent`: no client holds it up, and none is refused for what it sends."""

import os
import socket
from dataclasses import dataclass

import pytest
from package.in_status import Board, shared, told, worker
from server.probes import eventually

from tailrace.status import agent, snapshot
from tailrace.status.agent import Agent


@dataclass
class Told:
    """An agent that answers on a port of its own, and the state that it tells of."""

    memory: object
    port: int

    def ask(self, said=b""):
        with socket.create_connection(("127.0.0.1", self.port), 10) as client:
            client.sendall(said)
            return b"".join(iter(lambda: client.recv(100), b""))


@pytest.fixture
def asked():
    memory, board = shared(worker()), Board({})
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        reader, line = os.pipe()
        # Its thread closes the socket, so it has a descriptor of its own.
        own = listener.dup()
        Agent(own, lambda: snapshot.take(memory, board, lambda: 10.0, with_counts=False), reader).start()
        yield Told(memory, listener.getsockname()[1])
        os.close(line)
        eventually(lambda: own.fileno() < 0, "the end of its thread")
        os.close(reader)


@pytest.mark.parametrize("said", [b"", b"hello\n", b"x" * 20_000])
def test_a_client_is_told_at_once_whatever_it_sends(asked, said):
    assert asked.ask(said) == b"ready up 100%\n"


def test_the_next_answer_tells_of_a_change(asked):
    assert asked.ask() == b"ready up 100%\n"
    asked.memory.write(told(worker(), stopping=True))
    answers = [b"ready up 100%\n"]
    while answers[-1] == answers[0]:
        answers.append(asked.ask())
    assert answers[-1] == b"drain\n"


def test_clients_that_do_not_close_hold_nobody_up(asked):
    silent = []
    try:
        for _ in range(4 * agent.MAX_CLIENTS):
            silent.append(socket.create_connection(("127.0.0.1", asked.port), 10))
            assert silent[-1].recv(100) == b"ready up 100%\n"
        assert asked.ask() == b"ready up 100%\n"
    finally:
        for each in silent:
            each.close()


def test_ready_is_said_for_a_minute_only(monkeypatch):
    clock = iter([100.0, 100.0 + agent.NEW - 1, 100.0 + agent.NEW])
    memory = shared(worker())
    with socket.socket() as listener:
        found = Agent(listener, lambda: snapshot.take(memory, Board({}), lambda: 10.0, with_counts=False), -1)
        lines = []
        for now in clock:
            found._sample(now)
            lines.append(found._line)
    assert lines == [b"ready up 100%\n", b"ready up 100%\n", b"up 100%\n"]


def test_a_state_that_cannot_be_read_leaves_the_last_line():
    def fails():
        raise OSError("the master has not finished writing its state")

    with socket.socket() as listener:
        found = Agent(listener, fails, -1)
        found._sample(100.0)
    assert found._line == b"down #starting: no worker is ready yet\n"
