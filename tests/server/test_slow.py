"""`--slow-request-log`: a request that takes long is in the log while it runs, and again when it is done."""

import contextlib
import re

from harness.server import Server
from server.probes import asking, eventually, in_flight, open_gate, reading, told

APP = "srv_processes:app"


def test_a_slow_request_is_logged_with_its_stack_while_it_runs_and_again_when_it_is_done(tmp_path):
    with Server(APP, "--threads", "4", slow_request_log=0.2) as server:
        with asking(server, f"/wait?gate={tmp_path}/gate&entered={tmp_path}/entered") as client:
            name = f"GET /wait?gate={tmp_path}/gate&entered={tmp_path}/entered"[:180]
            assert server.logged(f"{name}: slow: it has run for ")
            assert server.logged(" s and is in the application, in thread ")
            assert server.logged(", in answer\n")
            # Others are quick.
            assert told(server, "/")["pid"]
            assert "slow: done" not in server.log
            (tmp_path / "gate").touch()
            assert client.response().body == b"waited"
        assert server.logged("slow: done, status 200, complete: ")
        assert server.logged(" bytes, one-write in 1 write\n")
    assert (server.log.count("slow: it has"), server.log.count("slow: done")) == (1, 1)


def test_a_response_that_is_iterated_for_long_is_named_as_such():
    with Server("srv_shapes:app", "--threads", "4", slow_request_log=0.2) as server:
        with asking(server, "/pause?gate=a&size=10&then=4") as client:
            assert server.logged("GET /pause?gate=a&size=10&then=4: slow: it has run for ")
            assert server.logged(" s and is iterating its response, in thread ")
            open_gate(server, "a")
            assert client.response().status == 200
        assert server.logged("2 blocks, 14 bytes, direct in ")


def test_a_slow_call_that_holds_the_interpreter_is_logged_without_a_stack(tmp_path):
    with Server(APP, "--workers", "1", slow_request_log=0.2, hang_timeout=3) as server:
        with in_flight(server, "/stuck?keeps=1", tmp_path / "entered") as client:
            assert server.logged("a thread holds the interpreter, so that no stack can be taken")
            client.rest()


def test_at_most_ten_requests_a_second_are_logged_and_a_line_counts_the_others(tmp_path):
    with Server(APP, "--threads", "24", slow_request_log=0.5) as server:
        with contextlib.ExitStack() as stack:
            targets = [f"/wait?gate={tmp_path}/gate&entered={tmp_path}/{number}" for number in range(20)]
            clients = [stack.enter_context(asking(server, target)) for target in targets]
            eventually(lambda: all((tmp_path / str(number)).exists() for number in range(20)), "all run")
            assert server.logged(" further requests have become slow; at most 10 a second are logged")
            (tmp_path / "gate").touch()
            assert [client.response().status for client in clients] == [200] * 20
        server.stop()
    running = server.log.count("slow: it has run for")
    left_out = sum(map(int, re.findall(r"slow: (\d+) further requests have become slow", server.log)))
    done = server.log.count("slow: done, status 200")
    assert (running + left_out, 10 <= running < 20, 10 <= done <= 20) == (20, True, True)


def test_a_request_that_waits_for_its_client_is_named_as_such():
    with Server(
        "srv_shapes:app", "--threads", "4", slow_request_log=0.1, client_memory="1MiB", response_spill="0"
    ) as server:
        with reading(server, "/generator?size=30000000&block=65536") as client:
            assert server.logged(" s and is waiting for its client, in thread ")
            assert len(client.response().body) == 30_000_000


def test_without_the_option_nothing_is_slow(tmp_path):
    with Server(APP, "--threads", "4", request_timeout=0.3) as server:
        with asking(server, f"/wait?gate={tmp_path}/gate&entered={tmp_path}/entered") as client:
            assert client.response().status == 504
        assert server.logged("past its deadline")
        (tmp_path / "gate").touch()
    assert "slow" not in server.log
