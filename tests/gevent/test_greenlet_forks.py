"""An application that forks while requests are in flight: the child has its own hub, the parent keeps its wakeup."""

import json
from contextlib import ExitStack

import pytest
from harness.greenlets import in_requests, on_greenlets
from harness.server import shared
from server.probes import asking, await_waiting, eventually, open_gate, request

server = shared(on_greenlets)


@pytest.mark.parametrize("how", ["os", "multiprocessing", "subprocess"])
def test_the_parent_goes_on_after_its_child_had_a_hub(server, how):
    # Fails when the child reads the wakeup that both share, and the parent sleeps with requests waiting; or when the
    # child answers the parent's clients.
    with ExitStack() as stack:
        clients = [stack.enter_context(asking(server, f"/wait?gate={how}&key={number}")) for number in range(20)]
        await_waiting(server, how, 20)
        forkers = [stack.enter_context(asking(server, f"/fork?how={how}")) for _ in range(4)]
        pongs = stack.enter_context(server.client())
        for _ in range(200):
            assert pongs.ask(request("/")).body == b"pong"
        for forker in forkers:
            assert json.loads(forker.response().body) == 7
        for _ in range(50):
            assert pongs.ask(request("/")).body == b"pong"
        open_gate(server, how)
        for number, client in enumerate(clients):
            assert json.loads(client.response().body) == {"opened": True, "key": str(number)}
    eventually(lambda: in_requests(server) == 0, "all have ended")
    assert "Traceback" not in server.log


def test_a_child_that_stays_holds_no_connection_open(server):
    # A connection that the child inherited would not end for its client; fails when descriptors are not close-on-fork
    # in effect: the response is complete, and the close must reach the client.
    with asking(server, "/fork?how=os", "Connection: close") as client:
        assert json.loads(client.response().body) == 7
        client.at_end()
