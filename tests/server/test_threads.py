"""Threads are added while the application waits, up to --threads; one more always does I/O."""

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from harness.server import Server
from harness.waits import until_it_wakes
from server.probes import asking, await_waiting, digest, eventually, open_gate, pattern, request, taken, told


@pytest.mark.parametrize("clients", [1, 8, 100, 300])
def test_threads_grow_for_an_application_that_sleeps_and_not_beyond_the_limit(clients):
    limit = 40
    with Server("srv_shapes:app", threads=limit) as server, ExitStack() as stack:
        targets = [f"/sleep?seconds=0.02&key={number}" for number in range(clients)]
        waiting = [stack.enter_context(asking(server, target)) for target in targets]
        for number, client in enumerate(waiting):
            response = client.response()
            assert response.status == 200
            assert response.body == b'{"key": "%d"}' % number
        process = told(server, "/process")
        # Two more than the crew: the main thread, and the one that announces the end.
        crew = [name for kind, name in process["threads"] if name.startswith("tailrace") and name != "tailrace-end"]
        assert len(crew) <= limit + 1
        assert process["active"] <= limit + 3
        assert process["most_running"] <= limit
        if clients == 1:
            assert len(crew) <= 4, "threads without need"


def test_the_limit_is_reached_and_threads_are_named_threads_of_the_threading_module():
    with Server("srv_shapes:app", threads=7) as server, ExitStack() as stack:
        waiting = [stack.enter_context(asking(server, "/wait?gate=all")) for _ in range(6)]
        await_waiting(server, "all", 6)
        process = told(server, "/process")
        open_gate(server, "all")
        assert [client.response().status for client in waiting] == [200] * 6
        assert process["most_running"] == 7
        assert not [name for kind, name in process["threads"] if kind == "_DummyThread" or name.startswith("Dummy")]
        crew = [name for kind, name in process["threads"] if name.startswith("tailrace")]
        assert len(crew) >= 7
        assert len(set(crew)) == len(crew), "names tell threads apart"
        assert process["current"][0] == "Thread"
        assert process["current"][1] in crew


def test_one_thread_runs_one_request_at_a_time_and_always_on_the_same_thread():
    with Server("srv_shapes:app", threads=1) as server:
        told(server, "/process")
        with ExitStack() as stack:
            # Clients that leave their responses in the socket, and heads that never end.
            for _ in range(5):
                stack.enter_context(asking(server, "/list?size=20000000"))
                stack.enter_context(server.client()).send(b"GET /slow HTTP/1.1\r\nHost: t")

            def ask(number):
                with asking(server, f"/sleep?seconds=0.001&key={number}") as client:
                    assert client.response().body == b'{"key": "%d"}' % number
                    client.send(request(f"/generator?size=3000&block=10&key={number}") * 3)
                    for _ in range(3):
                        assert client.response().body == pattern(3000)

            with ThreadPoolExecutor(20) as pool:
                for outcome in [pool.submit(ask, number) for number in range(80)]:
                    outcome.result(30)
            # Again and again after the threads came to rest.
            for number in range(20):
                eventually(lambda: until_it_wakes(server.pid) > 0, "that no thread runs")
                ask(number)
        process = told(server, "/process")
        assert process["most_running"] == 1
        assert process["idents"] == 1


def test_blocked_application_threads_do_not_block_what_needs_none_of_them(tmp_path):
    with Server("srv_shapes:app", threads=2, client_memory="8MiB") as server, ExitStack() as stack:
        size = 30_000_000
        slow = stack.enter_context(asking(server, f"/list?size={size}"))
        head = slow.head()
        gate = str(tmp_path / "gate")
        blocked = [stack.enter_context(asking(server, f"/wait?gate={gate}")) for _ in range(2)]
        fence = stack.enter_context(asking(server, "/process"))
        body = pattern(3_000_000)
        upload = stack.enter_context(server.client())
        upload.send(b"POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body))
        for _ in range(20):
            with server.client() as bad:
                assert bad.ask(b"GET / HTTP/1.1\r\nHost : t\r\n\r\n").status == 400
                bad.at_end()
        # More than the sockets hold: it must be read although no thread can run the application.
        upload.send(body)
        assert taken(slow, head) == digest(pattern(size))
        (tmp_path / "gate").touch()
        assert [client.response().status for client in blocked] == [200, 200]
        assert fence.response().status == 200
        assert json.loads(upload.response().body)["hash"] == hashlib.sha256(body).hexdigest()


IN_C = """
import itertools

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] == "/quick":
        return itertools.repeat(b"x" * 100)
    if environ["PATH_INFO"] == "/slow":
        return map(str.encode, map(str, map(sum, itertools.repeat(range(100_000)))))
    return [b"others"]
"""


@pytest.mark.parametrize("target", ["/quick", "/slow"])
def test_an_endless_iterator_that_is_written_in_c_lets_other_threads_run(tmp_path, target):
    (tmp_path / "in_c.py").write_text(IN_C)
    with Server("in_c:app", directory=tmp_path, threads=4) as server, server.client() as client:
        client.send(f"GET {target} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
        gone = threading.Event()

        def read():
            while not gone.is_set():
                client.sock.recv(1 << 20)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(20):
                assert server.get("/").body == b"others"
        finally:
            gone.set()
            reader.join()
