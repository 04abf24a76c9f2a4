"""`--request-timeout`: a request that hangs is sent 504 and logged, and other requests are not affected."""

import contextlib
import select

import pytest
from harness.addresses import free_address
from harness.server import Server
from harness.status import answer
from harness.wire import Broken
from server.probes import asking, eventually, request

BY_EXCEPTION = ["loop", "stubborn"]
BY_NOTHING = ["sleep", "lock", "read"]


@pytest.fixture
def server():
    # The test must not wait for threads that never end.
    with Server("srv_deadline:app", threads=8, request_timeout=0.5, graceful_timeout=0.2) as server:
        yield server


def is_healthy(server):
    for _ in range(3):
        assert server.get("/").body == b"pong"


@pytest.mark.parametrize("way", [*BY_EXCEPTION, *BY_NOTHING])
def test_a_request_that_hangs_is_answered_and_its_stack_is_in_the_log(server, way):
    with asking(server, f"/{way}?a=b") as client:
        response = client.response()
        assert (response.status, response["connection"]) == (504, "close")
        client.at_end()
    assert server.logged(f"GET /{way}?a=b: past its deadline")
    assert server.logged(f"in {way}\n") or server.logged(f"in {way if way != 'stubborn' else 'loop'}")
    is_healthy(server)
    if way == "loop":
        eventually(lambda: server.get("/ended").body == b"loop", "the exception in the thread")
        # Nothing but the one entry: no traceback of the exception itself.
        assert "RequestTimeout:" not in server.log


def test_a_deadline_of_0_has_passed_and_none_is_no_deadline():
    with Server("srv_deadline:app", threads=2, request_timeout=0, graceful_timeout=0.2) as server:
        with asking(server, "/loop?deadline=0") as client:
            assert client.response().status == 504
        assert server.get("/?deadline=none").body == b"pong"
        is_healthy(server)


def test_with_more_hanging_requests_than_threads_others_are_served(server):
    with contextlib.ExitStack() as stack:
        hanging = [stack.enter_context(asking(server, "/sleep")) for _ in range(12)]
        for client in hanging:
            assert client.response().status == 504
        is_healthy(server)


def test_a_response_that_has_begun_is_broken_off(server):
    with asking(server, "/begun") as client:
        head = client.head()
        assert head.status == 200
        with pytest.raises(Broken):
            while client.chunk(head):
                pass
    eventually(lambda: server.get("/ended").body == b"begun", "the generator's end")
    assert server.logged("the response was aborted")
    is_healthy(server)


def test_the_next_request_of_the_thread_meets_no_exception():
    # One application thread: whatever was left behind would hit the next request.
    with Server("srv_deadline:app", threads=1, request_timeout=0.2, graceful_timeout=0.2) as server:
        for _ in range(5):
            with asking(server, "/loop") as client:
                assert client.response().status == 504
            is_healthy(server)


def test_an_application_sets_the_deadline_of_a_request(server):
    with asking(server, "/nap?seconds=0.8&deadline=none") as client:
        assert client.response().body == b"rested"
    with asking(server, "/nap?seconds=0.8&deadline=5") as client:
        assert client.response().body == b"rested"
    with Server("srv_deadline:app", threads=4, graceful_timeout=0.2) as unlimited, contextlib.ExitStack() as stack:
        client = stack.enter_context(asking(unlimited, "/loop?deadline=0.2"))
        assert client.response().status == 504
        is_healthy(unlimited)


def test_a_deadline_that_is_kept_leaves_nothing_behind(server):
    with server.client() as client:
        for _ in range(200):
            assert client.ask(request("/")).body == b"pong"
        assert client.ask(request("/nap?seconds=0.7&deadline=0.6")).status == 504
    assert server.logged("past its deadline")
    assert server.log.count("past its deadline") == 1


def test_a_hundred_requests_of_which_ten_hang(server):
    with contextlib.ExitStack() as stack:
        clients = []
        for number in range(100):
            way = [*BY_EXCEPTION[:1], *BY_NOTHING][number // 10 % 4] if number % 10 == 0 else ""
            clients.append((way, stack.enter_context(asking(server, f"/{way}?{number}"))))
        for way, client in clients:
            response = client.response()
            assert response.status == (504 if way else 200), way
        for number in range(0, 100, 10):
            assert server.logged(f"?{number}: past its deadline")


def test_no_more_threads_run_after_deadlines_than_before():
    at = free_address()
    options = {"threads": 8, "max_queue": 12, "request_timeout": 0.5, "graceful_timeout": 0.2, "status": at}
    with Server("srv_deadline:app", **options) as server, contextlib.ExitStack() as stack:
        for client in [stack.enter_context(asking(server, "/loop")) for _ in range(10)]:
            assert client.response().status == 504
        eventually(lambda: server.get("/ended").body.count(b"loop") == 10, "the threads come back")
        # The one that has answered has its response before its thread is free.
        eventually(lambda: answer(at, "/status.json")["totals"]["running"] == 0, "all threads are free")
        # Eight have threads and twelve wait, so one of these is refused.
        waiting = [stack.enter_context(asking(server, "/gate?deadline=none")) for _ in range(21)]
        (refused,) = select.select([client.sock for client in waiting], [], [], 30)[0]
        (client,) = (client for client in waiting if client.sock is refused)
        assert client.response().status == 503
        eventually(lambda: server.log.count("at the gate") == 8, "as many at the gate as there are threads")


def test_when_no_thread_is_left_requests_are_refused():
    with (
        Server("srv_deadline:app", threads=2, request_timeout=0.2, graceful_timeout=0.2) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(asking(server, "/sleep")) for _ in range(40)]
        statuses = [client.response().status for client in clients]
        assert set(statuses) == {503, 504}
        assert statuses.count(504) >= 18


def test_a_finished_response_is_left_to_its_client(server):
    with asking(server, "/finished") as client:
        head = client.head()
        assert head.status == 200
        assert server.logged("the response has ended, but the application still runs")
        assert client.read(3_000_000) == bytes(3_000_000)


def test_a_lock_of_logging_that_a_request_holds_stops_nobody(server):
    with asking(server, "/logging") as client:
        assert client.response().status == 504
    for _ in range(3):
        with asking(server, "/loop") as client:
            assert client.response().status == 504
    is_healthy(server)
    server.get("/open")
