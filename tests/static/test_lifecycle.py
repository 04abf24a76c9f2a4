"""Files while the server is reloaded and stopped, folders are replaced, and the application forks."""

import contextlib
import json
import os
import shutil
import signal
import threading

import pytest
from harness.server import Server
from harness.wire import Broken
from server.probes import eventually
from static.site import LARGE, ask, pattern, request, serving, slow, tree, write

HUGE = 30_000_000


def test_a_reload_loses_no_request(tmp_path):
    files = {"a.css": b"a { }", "medium.js": pattern(20_000), "large.bin": pattern(LARGE)}
    tree(tmp_path, files)
    faults, answered, ended = [], [0], threading.Event()

    def ask_on_one_connection(name):
        with server.client(20) as client:
            while not ended.is_set():
                client.send(request(f"/assets/{name}"))
                try:
                    got = client.response()
                except Broken as broken:
                    # A connection that is kept may end between two responses.
                    if broken.response is not None:
                        faults.append(str(broken))
                    return
                answered[0] += 1
                if (got.status, got.body) != (200, files[name]):
                    faults.append((name, got.status))
                if "close" in got.connection:
                    return

    def load(name):
        while not ended.is_set():
            ask_on_one_connection(name)

    def goes_on():
        before = answered[0]
        eventually(lambda: answered[0] > before + 50, "answers")

    with serving(tmp_path) as server:
        threads = [threading.Thread(target=load, args=(name,)) for name in (*files, *files)]
        for thread in threads:
            thread.start()
        try:
            goes_on()
            for _ in range(3):
                old = set(server.workers())
                server.send_signal(signal.SIGHUP)
                eventually(lambda: not old & set(server.workers()), "other workers", 20)  # noqa: B023
                goes_on()
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert not faults, faults[:5]


def test_a_large_download_is_finished_before_the_server_stops(tmp_path):
    content = pattern(HUGE)
    tree(tmp_path, {"huge.bin": content})
    with serving(tmp_path, graceful_timeout=600) as server, slow(server, "/assets/huge.bin") as client:
        server.send_signal(signal.SIGTERM)
        assert server.logged("SIGTERM: finishing the requests in flight")
        assert server.process.poll() is None
        assert client.response().body == content
        assert server.wait() == 0


def test_a_download_that_takes_too_long_is_broken_off_at_the_stop(tmp_path):
    tree(tmp_path, {"huge.bin": pattern(HUGE)})
    with serving(tmp_path, graceful_timeout=1) as server, slow(server, "/assets/huge.bin") as client:
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        with pytest.raises(Broken):
            client.response()


def is_soon(server, target, content):
    """The content is served within about a second: the test allows for a slow machine."""
    eventually(lambda: server.get(target).body == content, content)


def test_a_folder_that_is_removed_and_made_again_is_served(tmp_path):
    folder = tree(tmp_path / "dist", {"a.js": b"1"})
    with serving(folder) as server:
        assert server.get("/assets/a.js").body == b"1"
        for number in (b"2", b"3"):
            shutil.rmtree(folder)
            eventually(lambda: server.get("/assets/a.js").status == 404, "nothing")
            eventually(lambda: server.get("/assets/b.js").status == 404, "nothing")
            tree(folder, {"a.js": number, "b.js": number})
            is_soon(server, "/assets/a.js", number)
            is_soon(server, "/assets/b.js", number)


def test_an_overlay_without_its_folder_leaves_all_to_the_application(tmp_path):
    folder = tree(tmp_path / "public", {"a.js": b"1"})
    with Server("echo:app", "--overlay", str(folder)) as server:
        assert server.get("/a.js").body == b"1"
        shutil.rmtree(folder)
        eventually(lambda: server.get("/a.js")["Content-Type"] == "application/json", "the application")
        assert json.loads(server.get("/b.js").body)["PATH_INFO"] == "/b.js"


@pytest.mark.parametrize("policy", ["beneath", "never", "follow"])
def test_a_link_to_the_folder_may_be_switched(tmp_path, policy):
    # As Capistrano does.
    for number in range(4):
        tree(tmp_path / f"releases/{number}/public", {"a.js": b"%d" % number, f"{number}.js": b"only"})
    current = tmp_path / "current"
    current.symlink_to("releases/0")
    with serving(current / "public", static_symlinks=policy) as server:
        is_soon(server, "/assets/a.js", b"0")
        for number in range(1, 4):
            (tmp_path / "next").symlink_to(f"releases/{number}")
            (tmp_path / "next").rename(current)
            is_soon(server, "/assets/a.js", b"%d" % number)
            is_soon(server, f"/assets/{number}.js", b"only")
            # It may have been looked at later than the others.
            eventually(lambda: server.get(f"/assets/{number - 1}.js").status == 404, "nothing")  # noqa: B023


def test_a_switch_is_seen_within_a_second(tmp_path):
    for number in range(2):
        tree(tmp_path / f"{number}", {"a.js": b"%d" % number})
    current = tmp_path / "current"
    current.symlink_to("0")
    with serving(current) as server, server.client() as client:
        # Asked for all the time, so that what is known is always fresh.
        for _ in range(100):
            assert ask(client, "/assets/a.js").body == b"0"
        (tmp_path / "next").symlink_to("1")
        (tmp_path / "next").rename(current)
        # The promise is 1 s; the machine may be busy.
        eventually(lambda: ask(client, "/assets/a.js").body == b"1", "the other folder")


def test_a_relative_folder_is_that_of_the_start(tmp_path):
    tree(tmp_path / "dist", {"a.js": b"1"})
    app = "import os\ndef app(environ, start):\n    os.chdir('/')\n    start('200 OK', [])\n    return []\n"
    write(tmp_path / "moving.py", app.encode())
    with Server("moving:app", "--static", "/assets=dist", directory=tmp_path) as server:
        assert server.get("/").status == 200
        # Another folder of this name is found by opening it again.
        (tmp_path / "dist").rename(tmp_path / "old")
        tree(tmp_path / "dist", {"a.js": b"2"})
        is_soon(server, "/assets/a.js", b"2")
        assert server.get("/assets/b.js").status == 404


def test_a_child_that_the_application_forks_has_no_file_and_harms_none(tmp_path):
    files = {f"{number}.bin": pattern(50_000, number) for number in range(20)}
    files["large.bin"] = pattern(LARGE)
    tree(tmp_path, files)
    with serving(tmp_path, app="forking:app", static_memory="300KiB") as server:
        for name, content in files.items():
            assert server.get(f"/assets/{name}").body == content
        for _ in range(3):
            seen = json.loads(server.get("/fork").body)
            assert seen["status"] == 0
            assert not [name for name in seen["files"] if "tailrace-files" in name or str(tmp_path) in name]
            for name, content in files.items():
                assert server.get(f"/assets/{name}").body == content


def open_files(pid):
    """What the descriptors of a process lead to; one that is closed meanwhile is left out."""
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return links


def test_open_files_are_bounded(tmp_path):
    tree(tmp_path, {f"{number}.bin": pattern(70_000, number) for number in range(600)})
    with serving(tmp_path) as server:
        for number in range(600):
            assert server.get(f"/assets/{number}.bin").body == pattern(70_000, number)

        def opened():
            return [link for link in open_files(server.pid) if link.endswith(".bin")]

        eventually(lambda: len(opened()) == 512, "512 files")


def test_a_file_that_is_gone_is_closed(tmp_path):
    path = write(tmp_path / "a.bin", pattern(LARGE))
    with serving(tmp_path) as server:
        assert server.get("/assets/a.bin").status == 200

        def opened():
            return [link for link in open_files(server.pid) if "a.bin" in link]

        assert len(opened()) == 1
        path.unlink()
        eventually(lambda: server.get("/assets/a.bin").status == 404, "missing")
        eventually(lambda: not opened(), "closed")
