"""Files of a file system that cannot tell what it has in memory, clients that do not read, and the access log."""

import json
import re
from contextlib import ExitStack

import pytest
from harness.fuse import HangingFiles, content_of
from server.probes import eventually
from static.site import LARGE, anonymous_memory, ask, pattern, request, serving, slow, tree

SIZES = {"small.txt": 5_000, "medium.txt": 40_000, "large.txt": 300_000, "huge.txt": 5_000_000, "other.txt": 30_000}
# With these, more files wait than there are threads for them.
SIZES |= {f"{number}.txt": 200_000 for number in range(8)}


@pytest.fixture
def files(tmp_path):
    with HangingFiles(tmp_path / "slow", SIZES) as mounted:
        yield mounted


def test_files_of_a_slow_file_system_are_served(files):
    with serving(files.folder) as server, server.client(30) as client:
        for _ in range(2):
            for name, size in SIZES.items():
                assert ask(client, f"/assets/{name}").body == content_of(name, size)


def test_a_file_system_that_does_not_answer_delays_no_other(files, tmp_path):
    fast = tree(tmp_path / "fast", {"a.txt": b"fast", "b.txt": b"fast, too"})
    with serving(files.folder, "--static", f"/fast={fast}") as server, ExitStack() as stack:
        assert server.get("/fast/a.txt").body == b"fast"
        # One is known, and open. Of the other the kernel knows the name, so that it opens it without a look-up.
        names = ("large.txt", "small.txt")
        assert (files.folder / "small.txt").stat().st_size == SIZES["small.txt"]
        assert server.get("/assets/large.txt").status == 200
        files.stop()
        clients = {name: stack.enter_context(server.client(60)) for name in names}
        for name, client in clients.items():
            client.send(request(f"/assets/{name}"))
        files.await_waiting()
        # By the thread that polls.
        for target, content in (("/fast/a.txt", b"fast"), ("/fast/b.txt", b"fast, too")):
            assert server.get(target).body == content
        assert server.get("/app").status == 200
        files.release()
        for name, client in clients.items():
            assert client.response().body == content_of(name, SIZES[name])


def test_a_file_system_that_does_not_answer_leaves_disk_threads_to_others(files, tmp_path):
    fast = tree(tmp_path / "fast", {"a.txt": b"fast", "b.txt": b"fast, too"})
    # With such links every file is looked up by a disk thread.
    options = {"static_symlinks": "follow"}
    with serving(files.folder, "--static", f"/fast={fast}", **options) as server, ExitStack() as stack:
        assert server.get("/assets/other.txt").status == 200
        files.stop()
        clients = {name: stack.enter_context(server.client(60)) for name in SIZES}
        for name, client in clients.items():
            client.send(request(f"/assets/{name}"))
        files.await_waiting()
        for name, content in (("a.txt", b"fast"), ("b.txt", b"fast, too")):
            assert server.get(f"/fast/{name}").body == content
        files.release()
        for name, client in clients.items():
            assert client.response().body == content_of(name, SIZES[name])


def test_reads_that_hang_leave_disk_threads_to_others(files, tmp_path):
    fast = tree(tmp_path / "fast", {"a.txt": b"fast"})
    options = {"static_symlinks": "follow"}
    names = [name for name in SIZES if SIZES[name] >= 200_000]
    with serving(files.folder, "--static", f"/fast={fast}", **options) as server, ExitStack() as stack:
        for name in names:
            files.hang(name)
        clients = {name: stack.enter_context(server.client(60)) for name in names}
        for name, client in clients.items():
            client.send(request(f"/assets/{name}"))
        files.await_waiting(4)
        assert server.get("/fast/a.txt").body == b"fast"
        files.release()
        for name, client in clients.items():
            assert client.response().body == content_of(name, SIZES[name])


def test_slow_clients_of_large_files_hold_no_memory_and_no_thread(tmp_path):
    content = pattern(1_000) * 20_000
    tree(tmp_path, {"huge.bin": content})
    with serving(tmp_path, threads=2) as server:
        assert server.get("/assets/huge.bin").body == content
        assert server.get("/app").status == 200
        before, threads = anonymous_memory(server), len(server.threads())
        clients = [slow(server, "/assets/huge.bin", 0, 4_096) for _ in range(100)]
        for _ in range(20):
            assert server.get("/assets/huge.bin", "Range: bytes=5-9").body == content[5:10]
            assert server.get("/app").status == 200
        assert anonymous_memory(server) - before < 100 * 40_000
        assert len(server.threads()) <= threads + 1
        for client in clients:
            client.close()


def test_a_client_that_does_not_read_is_given_up(tmp_path):
    folder = tree(tmp_path / "site", {"huge.bin": pattern(1_000) * 20_000})
    log = tmp_path / "log"
    options = {"write_timeout": 1, "access_log": log, "access_log_format": FORMAT}
    with serving(folder, **options) as server, slow(server, "/assets/huge.bin", 0, 4_096):
        (line,) = eventually(lambda: log.exists() and log.read_text().splitlines(), "a line")
    assert re.fullmatch(r"GET /assets/huge.bin 200 \d+ sendfile client-disconnected", line)


FORMAT = "{method} {path} {status} {bytes} {delivery} {ending}"


def test_the_access_log_has_the_requests_for_files(tmp_path):
    folder = tree(
        tmp_path / "site", {"small.txt": b"small", "medium.txt": pattern(30_000), "large.bin": pattern(LARGE)}
    )
    log = tmp_path / "log"
    with serving(folder, access_log=log, access_log_format=FORMAT) as server:
        with server.client() as client:
            tag = ask(client, "/assets/small.txt")["ETag"]
            ask(client, "/assets/small.txt", f"If-None-Match: {tag}")
            ask(client, "/assets/small.txt", method="HEAD")
            ask(client, "/assets/medium.txt")
            ask(client, "/assets/large.bin")
            ask(client, "/assets/large.bin", "Range: bytes=0-99999")
            ask(client, "/assets/small.txt", method="POST")
            ask(client, "/assets/no?x")
        # The thread that sends a response logs it, a little later.
        eventually(lambda: len(log.read_text().splitlines()) == 8, "eight lines")
        with slow(server, "/assets/large.bin", 0, 4_096) as client:
            client.sock.recv(100)
        lines = eventually(lambda: len(found := log.read_text().splitlines()) == 9 and found, "nine lines")
    assert lines[:6] == [
        "GET /assets/small.txt 200 5 one-write complete",
        "GET /assets/small.txt 304 0 none complete",
        "HEAD /assets/small.txt 200 0 none complete",
        "GET /assets/medium.txt 200 30000 sendfile complete",
        f"GET /assets/large.bin 200 {LARGE} sendfile complete",
        "GET /assets/large.bin 206 100000 sendfile complete",
    ]
    assert re.fullmatch(r"POST /assets/small.txt 405 [1-9]\d+ one-write complete", lines[6])
    assert re.fullmatch(r"GET /assets/no 404 [1-9]\d+ one-write complete", lines[7])
    assert re.match(r"GET /assets/large.bin 200 \d+ sendfile (client-disconnected|complete)", lines[8])


def test_the_access_log_has_no_time_of_the_application_for_files(tmp_path):
    folder = tree(tmp_path / "site", {"small.txt": b"small"})
    log = tmp_path / "log"
    with serving(folder, access_log=log, access_log_format="json") as server:
        assert server.get("/assets/small.txt").status == 200
        (line,) = eventually(lambda: log.exists() and log.read_text().splitlines(), "a line")
    entry = json.loads(line)
    assert (entry["status"], entry["target"]) == (200, "/assets/small.txt")
    assert all(value is None or value >= 0 for name, value in entry.items() if name.endswith("_ms"))
