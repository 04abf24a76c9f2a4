"""`--slow-request-log` with `--gevent`: the stack is that of the request's greenlet, whichever greenlet runs."""

from harness.greenlets import on_greenlets
from server.probes import asking


def test_a_slow_request_in_a_greenlet_is_logged_with_the_stack_of_that_greenlet(tmp_path):
    gate = tmp_path / "gate"
    with on_greenlets(slow_request_log=0.2) as server:
        with asking(server, f"/wait?gate={gate}&key=1") as client:
            assert server.logged("&key=***: slow: it has run for ")
            assert server.logged(", in pass_gate\n")
            gate.touch()
            assert client.response().status == 200
        assert server.logged("&key=***: slow: done, status 200, complete: ")
