"""Generators that pause: the client gets all blocks in order, and each block before a pause while the pause lasts."""

import itertools
import json
from urllib.parse import quote

import pytest
from harness.addresses import Address, free_address
from harness.server import Server
from harness.wire import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server.probes import digest, open_gate, pattern, request

SERIAL = itertools.count()

PAUSE = st.just([[0, "pause"]])
EMPTY = st.just([[0, "block"]])
SMALL = st.integers(1, 200).map(lambda size: [[size, "block"]])
BIG = st.sampled_from([16_383, 16_384, 16_385, 65_535, 65_536, 200_000, 1_100_000]).map(lambda size: [[size, "block"]])
BURST = st.tuples(st.integers(2, 1500), st.sampled_from([1, 7, 128, 1000, 15_000])).map(
    lambda burst: [[burst[1], "block"]] * min(burst[0], 3_000_000 // burst[1])
)
SCRIPTS = st.lists(st.one_of(PAUSE, EMPTY, SMALL, BIG, BURST), min_size=1, max_size=12).map(
    lambda parts: [step for part in parts for step in part]
)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """One server, on TCP and on a UNIX socket."""
    tcp = free_address()
    path = tmp_path_factory.mktemp("delivery") / "app.sock"
    binds = ["--bind", f"unix:{path}", "--bind", tcp.bind]
    limits = {"request_line_limit": 400_000, "header_bytes_limit": 500_000}
    with Server("srv_script:app", *binds, address=tcp, **limits) as server:
        yield {"tcp": tcp, "unix": Address(path=str(path)), "server": server}


class Body:
    """The bytes of a response body as they come, whatever the framing."""

    def __init__(self, client, response):
        self.client = client
        self.response = response
        self.got = b""
        self.left = int(response["content-length"]) if "content-length" in response else None
        self.chunked = "transfer-encoding" in response

    def until(self, size):
        """Waits for the first `size` bytes."""
        pieces, have = [self.got], len(self.got)
        while have < size:
            piece = self.client.chunk(self.response) if self.chunked else self.client.read(min(size - have, 65_536))
            self.response.body = b""
            assert piece, f"the body ends after {have} bytes"
            pieces.append(piece)
            have += len(piece)
        self.got = b"".join(pieces)
        return self.got

    def end(self):
        """Nothing more may come."""
        if self.chunked:
            assert self.client.chunk(self.response) == b""
        elif self.left is None:
            self.client.at_end(clean=True)


def check(addresses, family, framing, steps):
    name = f"s{next(SERIAL)}"
    total = sum(size for size, what in steps)
    target = f"/script?id={name}&steps={quote(json.dumps(steps, separators=(',', ':')))}"
    if framing == "length":
        target += "&length=1"
    with Client(addresses[family]) as client:
        client.send(request(target, version="1.0" if framing == "close" else "1.1"))
        sent = pauses = 0
        body = None
        for size, what in steps:
            sent += size
            if what != "pause":
                continue
            if sent:
                if body is None:
                    body = Body(client, client.head())
                got = body.until(sent)
                assert len(got) == sent, "bytes that were not yielded yet"
                assert digest(got) == digest(pattern(sent))
            open_gate(addresses["server"], f"{name}-{pauses}")
            pauses += 1
        body = body or Body(client, client.head())
        assert digest(body.until(total)) == digest(pattern(total))
        body.end()
        if framing != "close":
            assert client.ask(request("/")).body == b"pong"


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("family", ["tcp", "unix"])
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=SCRIPTS)
def test_any_rhythm_of_blocks_arrives_whole_and_at_once(addresses, family, framing, steps):
    check(addresses, family, framing, steps)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("quick", [1, 2, 3, 4, 5, 50, 1000])
def test_the_last_of_so_many_quick_blocks_is_not_held_back(addresses, framing, quick):
    # The way of delivery changes after a few quick blocks; the change must not keep a block.
    burst = [[10, "block"]] * quick
    check(addresses, "tcp", framing, [*burst, [0, "pause"]] * 6 + burst)


def test_a_pause_before_the_first_block_and_after_the_last(addresses):
    check(addresses, "tcp", "chunked", [[0, "pause"], [0, "block"], [5, "block"], [0, "pause"], [0, "block"]])


def test_fifty_paused_generators_go_on_one_by_one(addresses):
    steps = json.dumps([[100, "block"], [0, "pause"], [100, "block"]])
    clients = []
    try:
        for number in range(50):
            client = Client(addresses["tcp"])
            clients.append(client)
            client.send(request(f"/script?id=many{number}&steps={quote(steps)}"))
        for number, client in enumerate(clients):
            head = client.head()
            assert client.chunk(head) == pattern(100)
            open_gate(addresses["server"], f"many{number}-0")
            assert client.chunk(head) == pattern(100, 100)
            assert client.chunk(head) == b""
    finally:
        for client in clients:
            client.close()
