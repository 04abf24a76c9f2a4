"""Files that change while they are served."""

import hashlib
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from harness.wire import Broken
from server.probes import descriptors, eventually
from static.site import anonymous_memory, ask, replace, request, serving, slow, tree

MEMORY = 8 << 20
DESCRIPTORS = 512


def version(name, number, size):
    """A content of about this size that tells which it is, whether it is whole, and how long it is."""
    if size < 100:
        return f"{name}:{number}:{size}".encode()[:size].ljust(size, b".")
    seed = hashlib.sha256(f"{name}:{number}".encode()).hexdigest().encode()
    body = (seed * (size // len(seed) + 1))[: size - 64]
    return hashlib.sha256(body).hexdigest().encode() + body


def is_whole(content):
    return len(content) < 100 or hashlib.sha256(content[64:]).hexdigest().encode() == content[:64]


def rewrite(path, content):
    """In place: another length and the bytes in two steps, so that a reader may see half of it."""
    with path.open("r+b") as file:
        half = len(content) // 2
        file.write(content[:half])
        file.flush()
        file.write(content[half:])
        file.truncate()


def in_memory_file(server):
    """Bytes of the file without a name that has larger bodies."""
    for path in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            if "tailrace-files" in os.readlink(path):
                return path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return 0


@pytest.mark.parametrize("rounds", [250, pytest.param(1_250, marks=pytest.mark.nightly)])
def test_a_changed_file_is_never_served_half_old_and_half_new(tmp_path, rounds):
    chance = random.Random(7)
    sizes = [0, 10, 1_000, 11_000, 13_000, 40_000, 65_536, 65_537, 120_000, 200_000]
    names = [f"{number % 100}/{number}.bin" for number in range(10_000)]
    size_of = {name: sizes[number % 10] if number % 3 else chance.randrange(3_000) for number, name in enumerate(names)}
    tree(tmp_path, {name: version(name, 0, size_of[name]) for name in names})
    versions = {name: {version(name, 0, size_of[name])} for name in names}
    ended = threading.Event()
    changes = Counter()

    def change():
        mine = random.Random(8)
        number = 1
        while not ended.is_set():
            # Some are asked for more often than others, and changed more often, too.
            name = mine.choice(names if number % 2 else names[:200])
            path = tmp_path / name
            if mine.random() < 0.5 and 0 < size_of[name] <= 65_536:
                content = version(name, number, size_of[name])
                versions[name].add(content)
                rewrite(path, content)
                changes["rewritten"] += 1
            else:
                size = mine.choice(sizes)
                # What is above the border is only replaced.
                size_of[name] = size
                content = version(name, number, size)
                versions[name].add(content)
                replace(path, content)
                changes["replaced"] += 1
            number += 1
            time.sleep(0.001)

    faults, tags, tags_lock, served = [], {}, threading.Lock(), Counter()

    def load(seed):
        mine = random.Random(seed)
        with serving_.client(30) as client:
            for _ in range(rounds):
                batch = [mine.choice(names if mine.random() < 0.5 else names[:200]) for _ in range(10)]
                client.send(b"".join(request(f"/assets/{name}") for name in batch))
                for name in batch:
                    got = client.response()
                    served[got.status] += 1
                    if got.status != 200 or got.body not in versions[name]:
                        faults.append((name, got.status, len(got.body), is_whole(got.body)))
                    elif "etag" in got:
                        digest = hashlib.sha256(got.body).digest()
                        with tags_lock:
                            if tags.setdefault((name, got["ETag"]), digest) != digest:
                                faults.append((name, "one tag, two contents", got["ETag"]))

    with serving(tmp_path, static_memory=MEMORY) as serving_:
        before = anonymous_memory(serving_)
        threads = [threading.Thread(target=load, args=(seed,)) for seed in range(8)]
        changing = threading.Thread(target=change)
        for thread in (*threads, changing):
            thread.start()
        for thread in threads:
            thread.join()
        ended.set()
        changing.join()
        assert not faults, (len(faults), faults[:10])
        assert served[200] == 8 * rounds * 10
        assert min(changes.values()) > 100, changes
        assert in_memory_file(serving_) <= MEMORY
        # What the allocator keeps of what was dropped is not the cache's.
        assert anonymous_memory(serving_) - before + in_memory_file(serving_) <= 2 * MEMORY
        eventually(lambda: descriptors(serving_) <= DESCRIPTORS + 60, "open files")
        # In the end everybody gets what is there.
        eventually(
            lambda: all(serving_.get(f"/assets/{name}").body == (tmp_path / name).read_bytes() for name in names[:50]),
            "the last versions",
        )


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize("size", [900, 30_000, 200_000], ids=["memory", "extent", "sendfile"])
@pytest.mark.parametrize("how", ["replaced", "rewritten"])
def test_a_change_is_seen_and_has_another_tag(tmp_path, size, how):
    path = tmp_path / "a.bin"
    tree(tmp_path, {"a.bin": version("a", 0, size)})
    with serving(tmp_path) as server, server.client() as client:
        seen = set()
        for number in range(1, 6):
            old = ask(client, "/assets/a.bin")
            content = version("a", number, size)
            if how == "replaced":
                replace(path, content)
            else:
                path.write_bytes(content)
            eventually(lambda: ask(client, "/assets/a.bin").body == content, "the new content")  # noqa: B023
            got = eventually(lambda: "etag" in (got := ask(client, "/assets/a.bin")) and got, "a tag")
            assert got["ETag"] not in seen
            seen.add(got["ETag"])
            assert ask(client, "/assets/a.bin", f"If-None-Match: {old.fields and old.all('etag')[0]}").status == 200


@pytest.mark.parametrize("size", [100, 30_000_000], ids=["memory", "sendfile"])
def test_a_file_that_is_rewritten_with_its_time_restored_is_read_again_and_has_another_tag(tmp_path, size):
    path = tmp_path / "a.bin"
    tree(tmp_path, {"a.bin": version("a", 0, size)})
    with serving(tmp_path) as server, server.client() as client:
        tag = ask(client, "/assets/a.bin")["etag"]
        time_before = path.stat().st_mtime_ns
        rewrite(path, version("a", 1, size))
        os.utime(path, ns=(time_before, time_before))
        eventually(lambda: server.get("/assets/a.bin").body == version("a", 1, size), "the new content")
        assert server.get("/assets/a.bin").all("etag") != [tag]


def test_two_versions_within_a_second_are_told_apart_by_date_too(tmp_path):
    path = tmp_path / "a.txt"
    with serving(tmp_path) as server:
        seconds = [0, 1]
        # As a rule they are in one second at once.
        while seconds[0] != seconds[1]:
            path.unlink(missing_ok=True)
            eventually(lambda: server.get("/assets/a.txt").status == 404, "no file")
            path.write_bytes(b"old")
            seconds[0] = int(path.stat().st_mtime)
            first = server.get("/assets/a.txt")
            assert first.body == b"old"
            replace(path, b"new")
            seconds[1] = int(path.stat().st_mtime)
        eventually(lambda: server.get("/assets/a.txt").body == b"new", "the new content")
        dates = first.all("last-modified")
        fields = [f"If-Modified-Since: {date}" for date in dates]
        assert server.get("/assets/a.txt", *fields).body == b"new"
        assert "last-modified" in eventually(
            lambda: "last-modified" in (got := server.get("/assets/a.txt")) and got, "a date", 5
        )


def test_a_file_of_the_future_has_no_date(tmp_path):
    tree(tmp_path, {"a.txt": b"a"})
    os.utime(tmp_path / "a.txt", (time.time() + 10_000,) * 2)
    with serving(tmp_path) as server:
        got = server.get("/assets/a.txt")
        assert (got.status, got.all("last-modified")) == (200, [])
        assert server.get("/assets/a.txt", f"If-None-Match: {got['ETag']}").status == 304


def test_a_file_that_is_written_all_the_time_is_served(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"")
    ended = threading.Event()

    def write():
        with path.open("ab", buffering=0) as file:
            number = 0
            while not ended.is_set():
                file.write(b"%08d\n" % number)
                number += 1
                time.sleep(0.001)

    writing = threading.Thread(target=write)
    with serving(tmp_path) as server:
        writing.start()
        try:
            expected = b"".join(b"%08d\n" % number for number in range(200_000))
            for _ in range(20):
                got = server.get("/assets/log.txt")
                assert got.status == 200
                assert expected.startswith(got.body)
        finally:
            ended.set()
            writing.join()
        eventually(lambda: server.get("/assets/log.txt").body == path.read_bytes(), "all of it")


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_response_under_way_is_of_the_file_that_was_there(tmp_path, how):
    old, new = version("a", 0, 30_000_000), version("a", 1, 30_000_000)
    tree(tmp_path, {"a.bin": old})
    with serving(tmp_path) as server, slow(server, "/assets/a.bin") as client:
        # Its first bytes: to fetch 30 MB again and again takes longer than the wait on a busy machine.
        first = ("/assets/a.bin", "Range: bytes=0-63")
        if how == "replaced":
            replace(tmp_path / "a.bin", new)
            eventually(lambda: server.get(*first).body == new[:64], "the new one")
        else:
            (tmp_path / "a.bin").unlink()
            eventually(lambda: server.get(*first).status == 404, "missing")
        assert client.response().body == old


@pytest.mark.parametrize("how", ["truncated", "overwritten", "shorter"])
def test_a_large_file_that_is_rewritten_under_way_breaks_the_connection(tmp_path, how):
    size = 30_000_000
    path = tmp_path / "a.bin"
    tree(tmp_path, {"a.bin": version("a", 0, size)})
    with serving(tmp_path) as server, slow(server, "/assets/a.bin") as client:
        if how == "truncated":
            path.write_bytes(version("a", 1, size))
        elif how == "shorter":
            os.truncate(path, 100_000)
        else:
            rewrite(path, version("a", 1, size))
        with pytest.raises(Broken):
            client.response()
        assert server.logged("was changed while it was sent")
        eventually(lambda: server.get("/assets/a.bin").body == path.read_bytes(), "the new one")


TOUCHES = {
    "chmod": lambda path: path.chmod(0o600),
    "renamed": lambda path: path.rename(path.with_name("b.bin")),
    "linked": lambda path: os.link(path, path.with_name("b.bin")),
    "dated": lambda path: os.utime(path, ns=(0, path.stat().st_mtime_ns)),
}


@pytest.mark.parametrize("how", TOUCHES)
def test_a_large_file_whose_status_alone_changes_under_way_is_whole(tmp_path, how):
    content = version("a", 0, 30_000_000)
    tree(tmp_path, {"a.bin": content})
    with serving(tmp_path) as server, slow(server, "/assets/a.bin") as client:
        before = (tmp_path / "a.bin").stat().st_ctime_ns
        with (tmp_path / "a.bin").open("rb") as file:
            TOUCHES[how](tmp_path / "a.bin")
            assert os.fstat(file.fileno()).st_ctime_ns > before
        assert client.response().body == content
