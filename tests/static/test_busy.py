"""Files are served whatever the application does, and whatever else the server has to do."""

import re
import subprocess
import threading

import pytest
from harness.tools import need_tool
from server.probes import eventually
from static.site import ask, pattern, request, serving, tree

FILES = {"file.js": pattern(21_000), "large.bin": pattern(400_000), "small.css": b"a { }"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tree(tmp_path_factory.mktemp("site"), FILES)


def occupied(server, targets, begun):
    """Clients whose requests the application does not answer for as long as the test takes. begun: so many of them run
    at least; the others may wait."""
    clients = []
    for target in targets:
        client = server.client(60)
        client.send(request(target))
        clients.append(client)
    eventually(lambda: server.log.count("begins /") >= begun, f"{begun} requests that run")
    return clients


def at_a_rate(server, count=100, rate=100):
    """Replies and errors of so many connections at a rate."""
    command = [
        need_tool("httperf"), "--hog", f"--server={server.address.host}", f"--port={server.address.port}",
        "--uri=/assets/file.js", f"--num-conns={count}", f"--rate={rate}", "--timeout=5",
    ]  # fmt: skip
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    replies = int(re.search(r"Total: connections \d+ requests \d+ replies (\d+)", text)[1])
    errors = int(re.search(r"Errors: total (\d+)", text)[1])
    good = int(re.search(r"Reply status: 1xx=\d+ 2xx=(\d+)", text)[1])
    return replies, good, errors


WAYS = [
    pytest.param(["--threads", "2"], ["/sleep", "/sleep"], 2, id="threads-asleep"),
    pytest.param(["--threads", "1"], ["/sleep"], 1, id="one-thread-asleep"),
    pytest.param(["--threads", "2"], ["/hold"], 1, id="interpreter-held"),
    pytest.param(["--threads", "1"], ["/hold"], 1, id="interpreter-held-by-one-thread"),
    pytest.param(["--threads", "2"], ["/sleep"] * 30, 2, id="a-long-queue"),
    pytest.param(["--gevent"], ["/hold"], 1, id="hub-held"),
    pytest.param(["--workers", "2", "--threads", "2"], ["/hold"] * 8, 1, id="workers"),
]


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize(("arguments", "targets", "begun"), WAYS)
def test_files_are_served_while_the_application_does_not_respond(folder, arguments, targets, begun):
    server = serving(folder, *arguments, "--graceful-timeout", "0", app="busy:app")
    try:
        clients = occupied(server, targets, begun)
        assert at_a_rate(server) == (100, 100, 0)
        with server.client(5) as client:
            for name, content in FILES.items():
                assert ask(client, f"/assets/{name}").body == content
            assert ask(client, "/assets/no").status == 404
        for client in clients:
            client.sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.sock.recv(1)
            client.close()
    finally:
        server.kill()
        server.__exit__(None, None, None)


def test_with_debug_files_wait_for_the_application(folder, tmp_path):
    go, log = tmp_path / "go", tmp_path / "log"
    options = {"app": "busy:app", "environment": {"GO": str(go)}, "access_log": log, "access_log_format": "{path}"}
    with serving(folder, "--debug", **options) as server, server.client(30) as client, server.client(30) as busy:
        assert ask(client, "/assets/file.js").body == FILES["file.js"]
        busy.send(request("/wait"))
        assert server.logged("begins /wait")
        client.send(request("/assets/file.js"))
        go.touch()
        assert busy.response().body == b"awake"
        assert client.response().body == FILES["file.js"]
    assert log.read_text().split() == ["/assets/file.js", "/wait", "/assets/file.js"]


def test_files_take_no_place_in_the_queue(folder):
    options = {"threads": 1, "max_queue": 1, "graceful_timeout": 0}
    server = serving(folder, app="busy:app", **options)
    try:
        clients = occupied(server, ["/sleep", "/sleep"], 1)
        assert server.get("/app").status == 503
        for _ in range(10):
            assert server.get("/assets/file.js").status == 200
        for client in clients:
            client.close()
    finally:
        server.kill()
        server.__exit__(None, None, None)


def test_many_clients_at_once(folder):
    faults = []

    def load():
        with server.client(30) as client:
            for number in range(200):
                name = list(FILES)[number % 3]
                if ask(client, f"/assets/{name}").body != FILES[name]:
                    faults.append(name)

    with serving(folder) as server:
        threads = [threading.Thread(target=load) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults
