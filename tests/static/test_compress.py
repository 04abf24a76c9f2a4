"""`--compress`: files are compressed once, in the background."""

import gzip
import os
import time

import pytest
from harness.server import Server
from server.probes import eventually
from static.site import ask

TEXT = b"The server sends what the file has. " * 200


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "a.css", TEXT)
    return tmp_path


def write(path, content, age=10.0):
    """A file that has been left alone for a while."""
    path.write_bytes(content)
    moment = time.time() - age
    os.utime(path, (moment, moment))


def server(folder, *arguments, **options):
    return Server("echo:app", "--static", f"/={folder}", "--compress", *arguments, **options)


def get(serving, path, coding="gzip", *fields):
    return serving.get(path, f"Accept-Encoding: {coding}", *fields)


def compressed(serving, path, coding="gzip"):
    """The response once it is compressed; on a busy machine that takes long for hundreds of files."""

    def asked():
        response = get(serving, path, coding)
        assert response.status == 200
        return response if "Content-Encoding" in response else None

    response = eventually(asked, f"{path} in {coding}", 300)
    assert response["Content-Encoding"] == coding
    return response


def test_the_first_client_gets_the_file_and_later_ones_the_compressed_form(folder):
    with server(folder) as serving:
        first = get(serving, "/a.css")
        assert (first.status, first.body) == (200, TEXT)
        assert "Content-Encoding" not in first
        assert first["Vary"] == "Accept-Encoding"
        later = compressed(serving, "/a.css")
        assert gzip.decompress(later.body) == TEXT
        assert later["Content-Length"] == str(len(later.body))
        assert later["Vary"] == "Accept-Encoding"
        assert later["Last-Modified"] == first["Last-Modified"]
        tag, own = first["ETag"], later["ETag"]
        assert own.startswith(tag[:-1] + "-gzip-")
        # Each form is known by its own tag.
        assert get(serving, "/a.css", "gzip", f"If-None-Match: {own}").status == 304
        assert get(serving, "/a.css", "gzip", f"If-None-Match: {tag}").status == 200
        # A client that accepts nothing gets the file.
        assert serving.get("/a.css").body == TEXT
        assert get(serving, "/a.css", "gzip;q=0").body == TEXT


def test_brotli_comes_before_gzip(folder):
    with server(folder) as serving:
        assert len(compressed(serving, "/a.css", "br").body) < len(TEXT) / 10
        assert get(serving, "/a.css", "gzip, br, zstd")["Content-Encoding"] == "br"
        compressed(serving, "/a.css", "gzip")
        assert get(serving, "/a.css", "gzip, br, zstd")["Content-Encoding"] == "br"


def test_a_range_of_the_compressed_form_is_one_of_its_bytes(folder):
    with server(folder) as serving:
        whole = compressed(serving, "/a.css")
        part = get(serving, "/a.css", "gzip", "Range: bytes=10-19", f"If-Range: {whole['ETag']}")
        assert (part.status, part.body) == (206, whole.body[10:20])
        assert part["Content-Range"] == f"bytes 10-19/{len(whole.body)}"
        assert part["Content-Encoding"] == "gzip"


def test_a_file_that_changes_is_compressed_again(folder):
    with server(folder) as serving:
        old = compressed(serving, "/a.css")
        write(folder / "a.css", TEXT + b"more", age=5)

        def changed():
            response = get(serving, "/a.css")
            return response if response["ETag"] != old["ETag"] else None

        assert eventually(changed, "the new version").body == TEXT + b"more"
        assert gzip.decompress(compressed(serving, "/a.css").body) == TEXT + b"more"


def test_the_compressed_form_outlives_looks_at_the_file(folder):
    with server(folder) as serving:
        old = compressed(serving, "/a.css")
        # A look finds the sibling, which only clients that accept Brotli get.
        write(folder / "a.css.br", b"sibling", age=5)
        eventually(lambda: get(serving, "/a.css", "br").body == b"sibling", "the sibling")
        assert get(serving, "/a.css")["ETag"] == old["ETag"]


def test_siblings_come_first(folder):
    write(folder / "a.css.gz", gzip.compress(b"sibling"), age=5)
    with server(folder) as serving:
        assert gzip.decompress(get(serving, "/a.css").body) == b"sibling"
        compressed(serving, "/a.css", "br")
        assert gzip.decompress(get(serving, "/a.css").body) == b"sibling"


def test_files_that_gain_nothing_are_sent_as_they_are(folder):
    write(folder / "noise.txt", os.urandom(10_000))
    write(folder / "a.png", TEXT)
    write(folder / "small.txt", b"a" * 255)
    write(folder / "last.txt", TEXT)
    with server(folder) as serving:
        for name in ("noise.txt", "a.png", "small.txt"):
            assert "Content-Encoding" not in get(serving, f"/{name}")
        # One file after the other is compressed.
        compressed(serving, "/last.txt")
        for name in ("noise.txt", "a.png", "small.txt"):
            response = get(serving, f"/{name}")
            assert "Content-Encoding" not in response
            assert response.body == (folder / name).read_bytes()
        assert "Vary" not in get(serving, "/a.png")


@pytest.mark.parametrize("size", [20_000, 3 << 20])
def test_larger_files_are_compressed_wherever_their_bytes_are(folder, size):
    text = b"".join(b"%d lines\n" % number for number in range(size // 10))
    write(folder / "large.txt", text)
    with server(folder) as serving:
        assert get(serving, "/large.txt").body == text
        assert gzip.decompress(compressed(serving, "/large.txt").body) == text


def test_the_memory_for_files_holds_for_compressed_ones(folder):
    # Half of it is noise.
    text = b"".join(os.urandom(50).hex().encode() for _ in range(5_000))
    write(folder / "large.txt", text)
    with server(folder, "--static-memory", "100KiB") as serving:
        assert get(serving, "/large.txt").body == text
        compressed(serving, "/a.css")
        assert "Content-Encoding" not in get(serving, "/large.txt")
        assert "Content-Encoding" in get(serving, "/a.css")


def test_no_request_waits_until_a_file_is_compressed(folder):
    for number in range(200):
        # It takes longer to compress than to send.
        write(folder / f"{number}.txt", os.urandom(150_000).hex().encode())
    with server(folder) as serving, serving.client() as client:
        for number in range(200):
            assert "Content-Encoding" not in ask(client, f"/{number}.txt", "Accept-Encoding: br")
        assert ask(client, "/a.css").body == TEXT
        # More are asked for than may wait: this one was sent, and is not compressed yet.
        assert "Content-Encoding" not in ask(client, "/199.txt", "Accept-Encoding: br")
        compressed(serving, "/199.txt", "br")


def test_without_the_option_nothing_is_compressed(folder):
    with Server("echo:app", "--static", f"/={folder}") as serving:
        for _ in range(3):
            response = get(serving, "/a.css")
            assert "Content-Encoding" not in response
            assert "Vary" not in response
