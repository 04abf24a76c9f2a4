"""The figures of the process that holds connections, as pages get them."""

import json
import os
import re
import secrets
import socket
import threading
import time
from pathlib import Path

import pytest
from package.in_status import holding, told

from tailrace.status import held, table
from tailrace.status.held import Reader

FIGURES = {
    "connections": 3,
    "channels": 2,
    "published": 40,
    "delivered": 70,
    "sent_bytes": 900,
    "kept_bytes": 50,
    "waiting_bytes": 0,
    "closed": {"complete": 1, "left": 5},
    "largest": [["news", 2], ["orders", 1]],
    "bus": None,
}


class Fake:
    """A process that holds connections. answers: what it says, one after the other; None: nothing."""

    def __init__(self, *answers):
        self.address = f"tailrace-test-{os.getpid()}-{secrets.token_hex(4)}"
        self.state = told(holder=7, holder_address=self.address)
        self.answers, self.asked = list(answers), 0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(f"\0{self.address}")
        self.listener.listen()
        self.clients = []

    def __enter__(self):
        threading.Thread(target=self.run, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for client in self.clients:
            client.close()

    def run(self):
        for answer in self.answers:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            assert b"".join(iter(lambda client=client: client.recv(100), b"")) == b"\1\0\0\0F"
            self.asked += 1
            self.clients.append(client)
            if answer is not None:
                client.sendall(answer)
                client.close()


def test_the_figures_are_those_of_the_process_and_are_asked_for_again_once_they_are_old():
    now = [100.0]
    answers = [json.dumps({**FIGURES, "published": number}).encode() for number in (40, 41)]
    with Fake(*answers) as fake:
        reader = Reader(lambda: now[0])
        found = reader.read(fake.state)
        assert found == {
            "pid": 7,
            "age_seconds": 0.0,
            **FIGURES,
            "largest": [{"channel": "news", "connections": 2}, {"channel": "orders", "connections": 1}],
        }
        now[0] += 0.125
        assert (reader.read(fake.state)["age_seconds"], fake.asked) == (0.125, 1)
        now[0] += 0.125
        assert (reader.read(fake.state)["published"], fake.asked) == (41, 2)


@pytest.mark.parametrize("answer", [None, b"", b'{"connections": 3'], ids=["nothing", "an end", "a part"])
def test_a_process_that_does_not_answer_delays_one_page_and_its_last_figures_are_shown(answer):
    now = [100.0]
    with Fake(json.dumps(FIGURES).encode(), answer, json.dumps(FIGURES).encode()) as fake:
        reader = Reader(lambda: now[0])
        assert reader.read(fake.state)["age_seconds"] == 0.0
        now[0] += 1
        began = time.monotonic()
        found = reader.read(fake.state)
        assert time.monotonic() - began < held.TIMEOUT + 1.0
        assert (found["connections"], found["age_seconds"], fake.asked) == (3, 1.0, 2)
        now[0] += held.PAUSE - 0.1
        assert (reader.read(fake.state)["age_seconds"], fake.asked) == (pytest.approx(2.9), 2)
        now[0] += 0.2
        assert (reader.read(fake.state)["age_seconds"], fake.asked) == (0.0, 3)


def test_while_one_page_waits_for_the_process_another_one_does_not():
    with Fake(json.dumps(FIGURES).encode(), None) as fake:
        reader = Reader()
        assert reader.read(fake.state)["connections"] == 3
        with reader._asking:
            assert reader.read(fake.state)["connections"] == 3
        assert fake.asked == 1


def test_without_a_process_nothing_is_asked_and_nothing_old_is_shown():
    with Fake(json.dumps(FIGURES).encode()) as fake:
        reader = Reader()
        assert reader.read(fake.state._replace(holder=0)) is None
        assert fake.asked == 0
        assert reader.read(fake.state)["pid"] == 7
        assert reader.read(fake.state._replace(holder=0)) is None
        # Its successor has not answered yet.
        assert reader.read(fake.state._replace(holder=8, holder_address="tailrace-nowhere")) is None


def test_the_core_gives_every_figure_that_a_metric_has():
    with holding() as address:
        found = Reader().read(told(holder=os.getpid(), holder_address=address))
    assert set(found) == {*FIGURES, "pid", "age_seconds"}
    assert {metric.key for metric in table.OF_HOLDER} == set(FIGURES) - {"largest", "bus"}
    assert {metric.key for metric in table.OF_BUS} == set(found["bus"])
    assert (found["connections"], found["published"], found["largest"]) == (0, 0, [])
    page = (Path(__file__).resolve().parents[2] / "docs/reference/status-json.md").read_text()
    for key in ("closed", "bus"):
        _, _, described = page.partition(f"<!-- {key} -->\n")
        keys = re.findall(r"^\| `(\w+)` \|", described.partition("\n\n")[0], re.MULTILINE)
        assert sorted(keys) == sorted(found[key])
