"""Servers on Linux 4.18, the oldest that is supported: a filter has every system call fail that is newer, as one that
the kernel does not have (ENOSYS), or as one that a container forbids (EPERM)."""

import os
import signal
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.old_kernel import prefix
from harness.operated import Operated
from harness.status import answer, is_ready, status_process
from harness.wire import Client
from server.probes import eventually, request

FAULTS = ["ENOSYS", "EPERM"]
MODES = {"threads": (), "greenlets": ("--gevent",), "workers": ("--workers", "2")}
APP = """
import os
import time
from urllib.parse import parse_qs

VERSION = b"one"


def until(path):
    while not os.path.exists(path):
        time.sleep(0.005)


def app(environ, start_response):
    gate = parse_qs(environ["QUERY_STRING"]).get("gate", [""])[0]
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    return globals()[environ["PATH_INFO"][1:]](environ, gate)


def version(environ, gate):
    return [VERSION]


def several(environ, gate):
    return [b"one", b"", b"two"]


def large(environ, gate):
    return [b"x" * 5_000_000]


def echo(environ, gate):
    return [environ["wsgi.input"].read()]


def file(environ, gate):
    return environ["wsgi.file_wrapper"](open("large.bin", "rb"))


def many(environ, gate):
    return (b"%09d." % number for number in range(20_000))


def quick(environ, gate):
    for number in range(500):
        yield b"%09d." % number
    until(gate)
    yield b"end"


def slow(environ, gate):
    yield b"first"
    until(gate)
    yield b"last"


def hang(environ, gate):
    environ["tailrace.set_deadline"](0.2)
    while True:
        time.sleep(0.01)
"""
MANY = b"".join(b"%09d." % number for number in range(20_000))
CONTENT = os.urandom(3_000_000)


def start(directory, fault, *arguments):
    (directory / "app.py").write_text(APP)
    (directory / "large.bin").write_bytes(CONTENT)
    return Operated(directory, "app:app", *arguments, "--graceful-timeout", "2", prefix=prefix(fault))


@pytest.fixture(scope="module", params=[(fault, mode) for fault in FAULTS for mode in MODES], ids="-".join)
def server(request, tmp_path_factory):
    fault, mode = request.param
    directory = tmp_path_factory.mktemp("old")
    folder = directory / "files"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file.txt").write_bytes(CONTENT)
    (folder / "link.txt").symlink_to("below/file.txt")
    (folder / "outside.txt").symlink_to("../app.py")
    with start(directory, fault, *MODES[mode], "--static", f"/static={folder}") as server:
        server.serves()
        yield server
        assert server.stop() == 0
        # The faults of calls whose failure nobody has expected.
        assert "Function not implemented" not in server.log
        assert "Operation not permitted" not in server.log


@pytest.mark.nightly(gate=8)
@pytest.mark.parametrize(
    ("target", "body"),
    [("several", b"onetwo"), ("large", b"x" * 5_000_000), ("file", CONTENT), ("many", MANY)],
)
def test_it_sends_every_shape_of_response(server, target, body):
    with Client(server.address) as client:
        for _ in range(3):
            response = client.ask(request(f"/{target}"))
            assert (response.status, response.body == body) == (200, True)


def test_it_receives_bodies(server):
    with Client(server.address) as client:
        for size in (10, 2_000_000):
            body = CONTENT[:size]
            client.send(b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size + body)
            assert client.response().body == body


@pytest.mark.parametrize(("target", "before", "after"), [("slow", b"first", b"last"), ("quick", MANY[:5000], b"end")])
def test_blocks_arrive_while_the_generator_waits(server, tmp_path, target, before, after):
    gate = tmp_path / "gate"
    with Client(server.address) as client:
        client.send(request(f"/{target}?gate={gate}"))
        response = client.head()
        while len(response.body) < len(before):
            assert client.chunk(response)
        assert response.body == before
        gate.touch()
        while client.chunk(response):
            pass
        assert response.body == before + after


def test_blocks_of_generators_are_coalesced_while_further_requests_wait(server):
    clients = [Client(server.address) for _ in range(8)]
    for _ in range(5):
        for client in clients:
            client.send(request("/many"))
        for client in clients:
            assert client.response().body == MANY
    for client in clients:
        client.close()


def test_a_request_past_its_deadline_is_answered(server):
    assert server.get("/hang").status == 504
    assert server.get("/several").body == b"onetwo"


def test_links_of_static_files_stay_in_their_folder(server):
    for target, status in {"below/file.txt": 200, "link.txt": 200, "outside.txt": 404, "none.txt": 404}.items():
        for _ in range(2):
            response = server.get(f"/static/{target}")
            assert response.status == status, target
            assert status == 404 or response.body == CONTENT


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_reload_serves_the_new_code_and_a_stop_is_clean(tmp_path, fault, mode):
    with start(tmp_path, fault, *MODES[mode]) as server:
        assert server.serves().get("/version").body == b"one"
        (tmp_path / "app.py").write_text(APP.replace('b"one"', 'b"the next one"'))
        server.tell(signal.SIGHUP)
        server.replaced()
        assert server.get("/version").body == b"the next one"
        assert server.stop() == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_the_status_process_is_replaced_and_ends_with_its_master(tmp_path, fault):
    status = free_address()
    with start(tmp_path, fault, "--status", status.bind) as server:
        eventually(lambda: is_ready(status), "readiness")
        assert answer(status, "/status.json")["workers"][0]["state"] == "serving"
        killed = status_process(server)
        assert "Seccomp:\t2\n" in Path(f"/proc/{killed}/status").read_text()
        os.kill(killed, signal.SIGKILL)
        server.logged(f"the status process (pid {killed}) was killed by SIGKILL; replacing it")
        eventually(lambda: status_process(server) not in (None, killed) and is_ready(status), "the next one")
        assert server.stop() == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_file_is_noticed_and_the_watcher_ends_with_its_master(tmp_path, fault):
    with start(tmp_path, fault, "--reload") as server:
        server.serves().logged("watching the files in")
        (tmp_path / "app.py").write_text(APP.replace('b"one"', 'b"the next one"'))
        eventually(lambda: server.get("/version").body == b"the next one", "the new code")
        assert server.stop() == 0
