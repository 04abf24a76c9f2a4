"""Compressed siblings: which one a client gets, and when. coding.rs of crates/http/tests knows what clients may say."""

import os

import pytest
from server.probes import eventually
from static.site import LARGE, OLD, ask, fields_of, overlaying, pattern, replace, serving, tree, write

CONTENT = {"": pattern(3_000), ".br": b"brotli" * 50, ".zst": b"zstandard" * 40, ".gz": b"gzip" * 200}
NAMES = {"": None, ".br": "br", ".zst": "zstd", ".gz": "gzip"}

CHOICES = [
    (None, ""),
    ("gzip, deflate, br, zstd", ".br"),
    ("gzip;q=0.8, br;q=0.5, zstd;q=0.9", ".zst"),
    ("br;q=0, gzip", ".gz"),
    ("identity;q=0", ""),
]


def siblings(folder, name, *suffixes):
    for suffix in suffixes:
        write(folder / (name + suffix), CONTENT[suffix])


def named(client, target, coding):
    got = ask(client, target, *([f"Accept-Encoding: {coding}"] if coding is not None else []))
    return got.body, got["Content-Encoding"] if "content-encoding" in got else None


def wait_for(server, target, suffix, accept="br, zstd, gzip"):
    """Waits until the client gets this sibling."""
    wanted = f"Accept-Encoding: {accept}"
    eventually(lambda: server.get(target, wanted).body == CONTENT[suffix], suffix or "the file")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    siblings(folder, "a.js", *CONTENT)
    siblings(folder, "one.js", "", ".gz")
    siblings(folder, "none.js", "")
    tree(folder, {"large.js": pattern(LARGE), "large.js.gz": pattern(LARGE - 1, 7)})
    with serving(folder) as started:
        yield started


def test_the_coding_is_the_one_that_the_client_prefers(server):
    with server.client() as client:
        for accept, suffix in CHOICES:
            assert named(client, "/assets/a.js", accept) == (CONTENT[suffix], NAMES[suffix]), accept
            # Of these files there is one coding, and none.
            expected = ".gz" if "gzip" in (accept or "") else ""
            assert named(client, "/assets/one.js", accept) == (CONTENT[expected], NAMES[expected]), accept
            assert named(client, "/assets/none.js", accept) == (CONTENT[""], None)


def test_a_response_tells_caches_what_it_depends_on(server):
    with server.client() as client:
        tags = set()
        for suffix, coding in NAMES.items():
            accept = f"Accept-Encoding: {coding or 'identity'}"
            got = ask(client, "/assets/a.js", accept)
            assert (got["Vary"], got["Content-Type"]) == ("Accept-Encoding", "text/javascript; charset=utf-8")
            assert got["Content-Length"] == str(len(CONTENT[suffix]))
            tags.add(got["ETag"])
            again = ask(client, "/assets/a.js", accept, f"If-None-Match: {got['ETag']}")
            assert (again.status, again["Vary"], again["ETag"]) == (304, "Accept-Encoding", got["ETag"])
            part = ask(client, "/assets/a.js", accept, "Range: bytes=3-9")
            assert (part.status, part.body, part["Vary"]) == (206, CONTENT[suffix][3:10], "Accept-Encoding")
            assert part.all("content-encoding") == ([coding] if coding else [])
            head = ask(client, "/assets/a.js", accept, method="HEAD")
            assert fields_of(head) == fields_of(got)
        assert len(tags) == 4
        # A tag of another coding is another representation.
        tag = ask(client, "/assets/a.js", "Accept-Encoding: br")["ETag"]
        assert ask(client, "/assets/a.js", "Accept-Encoding: gzip", f"If-None-Match: {tag}").status == 200
        assert "vary" not in ask(client, "/assets/none.js")


def test_a_large_file_has_siblings_too(server):
    assert server.get("/assets/large.js").body == pattern(LARGE)
    assert server.get("/assets/large.js", "Accept-Encoding: gzip").body == pattern(LARGE - 1, 7)


def test_a_sibling_is_a_file_of_its_own_too(server):
    got = server.get("/assets/a.js.gz", "Accept-Encoding: gzip")
    assert (got.body, got["Content-Type"]) == (CONTENT[".gz"], "application/gzip")
    assert "content-encoding" not in got


def test_an_older_sibling_is_not_used(tmp_path):
    siblings(tmp_path, "a.js", *CONTENT)
    os.utime(tmp_path / "a.js.br", (OLD - 1, OLD - 1))
    # In the same second, but before the file.
    os.utime(tmp_path / "a.js", ns=(OLD * 10**9 + 900_000_000,) * 2)
    os.utime(tmp_path / "a.js.zst", ns=(OLD * 10**9 + 100_000_000,) * 2)
    with serving(tmp_path) as server:
        # Compressors that keep the time of change of a file may lose the part of a second.
        assert server.get("/assets/a.js", "Accept-Encoding: br, zstd, gzip").body == CONTENT[".gz"]


@pytest.mark.parametrize("start", [serving, overlaying], ids=["mount", "overlay"])
def test_siblings_that_appear_change_and_disappear_are_seen(tmp_path, start):
    target = "/assets/a.js" if start is serving else "/a.js"
    siblings(tmp_path, "a.js", "")
    with start(tmp_path) as server:
        assert server.get(target, "Accept-Encoding: br, zstd, gzip").body == CONTENT[""]
        siblings(tmp_path, "a.js", ".gz")
        wait_for(server, target, ".gz")
        siblings(tmp_path, "a.js", ".br")
        wait_for(server, target, ".br")
        # The file is newer than its siblings now.
        replace(tmp_path / "a.js", CONTENT[""])
        wait_for(server, target, "")
        replace(tmp_path / "a.js.zst", CONTENT[".zst"])
        wait_for(server, target, ".zst")
        (tmp_path / "a.js.zst").unlink()
        wait_for(server, target, "")
        (tmp_path / "a.js").unlink()
        replace(tmp_path / "a.js.gz", CONTENT[".gz"])
        missing = 404 if start is serving else 200
        eventually(lambda: server.get(target, "Accept-Encoding: gzip").body != CONTENT[""], "without the file")
        assert server.get(target, "Accept-Encoding: gzip").status == missing
        assert server.get(target, "Accept-Encoding: gzip").body != CONTENT[".gz"]


def test_a_sibling_that_is_no_file_is_ignored(tmp_path):
    siblings(tmp_path, "a.js", "")
    (tmp_path / "a.js.br").mkdir()
    os.mkfifo(tmp_path / "a.js.zst")
    (tmp_path / "a.js.gz").symlink_to("/etc/passwd")
    with serving(tmp_path) as server:
        assert server.get("/assets/a.js", "Accept-Encoding: br, zstd, gzip").body == CONTENT[""]
