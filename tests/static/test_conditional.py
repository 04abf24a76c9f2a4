"""Conditions and ranges of requests for files: RFC 9110 sections 13 and 14. conditional.rs and range.rs of
crates/http/tests have them case by case."""

import email
import os
from email.utils import formatdate

import pytest
from static.site import LARGE, OLD, ask, fields_of, pattern, serving, tree

FILES = {"small.txt": pattern(1_000, 1), "medium.txt": pattern(30_000, 2), "large.txt": pattern(LARGE, 3)}
DATE = formatdate(OLD, usegmt=True)
LATER = formatdate(OLD + 1, usegmt=True)
EARLIER = formatdate(OLD - 1, usegmt=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tree(tmp_path_factory.mktemp("site"), {**FILES, "empty.txt": b""})
    with (folder / "huge.bin").open("wb") as huge:
        huge.truncate(5 << 30)
        huge.seek((4 << 30) + 10)
        huge.write(b"beyond 32 bits")
    os.utime(folder / "huge.bin", (OLD, OLD))
    with serving(folder) as started:
        yield started


@pytest.fixture(scope="module")
def tags(server):
    return {name: server.get(f"/assets/{name}")["ETag"] for name in (*FILES, "empty.txt")}


CONDITIONS = [
    ([], 200),
    (['If-None-Match: "other"', "If-None-Match: W/{tag}"], 304),
    (['If-None-Match: "other"', f"If-Modified-Since: {DATE}"], 200),
    ([f"If-Modified-Since: {DATE}"], 304),
    ([f"If-Modified-Since: {EARLIER}"], 200),
    (["If-Match: {tag}"], 200),
    (['If-Match: "other"', "If-None-Match: {tag}"], 412),
    ([f"If-Unmodified-Since: {EARLIER}", f"If-Modified-Since: {DATE}"], 412),
    (["Range: bytes=0-1", "If-None-Match: {tag}"], 304),
    (["Range: bytes=9999999-", 'If-Match: "other"'], 412),
]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", [*FILES, "empty.txt"])
def test_conditions(server, tags, name, method):
    with server.client() as client:
        for fields, status in CONDITIONS:
            fields = [field.replace("{tag}", tags[name]) for field in fields]
            got = ask(client, f"/assets/{name}", *fields, method=method)
            assert got.status == status, fields
            if status == 304:
                assert got.body == b""
                assert (got["ETag"], got["Last-Modified"]) == (tags[name], DATE)
                assert "content-type" not in got
                assert "content-encoding" not in got


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_condition_does_not_matter_for_what_does_not_exist(server, method):
    with server.client() as client:
        for fields in (["If-Match: *"], ["If-None-Match: *"], ["Range: bytes=0-"]):
            assert ask(client, "/assets/no", *fields, method=method).status == 404


# The Range field, and the offsets of the parts that it gives of 1,000 bytes; None: all of it; empty: 416.
RANGES = [
    ("bytes=0-0", [(0, 0)]),
    ("bytes=999-", [(999, 999)]),
    ("bytes=-5000", [(0, 999)]),
    ("bytes=0-9,100-109,200-209", [(0, 9), (100, 109), (200, 209)]),
    ("bytes=0-99,50-149", [(0, 99), (50, 149)]),
    ("bytes=" + ",".join(f"{10 * n}-{10 * n + 1}" for n in range(64)), [(10 * n, 10 * n + 1) for n in range(64)]),
    ("bytes=" + ",".join(f"{10 * n}-{10 * n + 1}" for n in range(65)), None),
    ("bytes=1000-", []),
    ("bytes=2-1", None),
]


def check(got, content, parts, whole):
    """Whether the response has these parts of the content, and nothing else."""
    if parts is None:
        assert (got.status, got.body) == (200, content)
        assert "content-range" not in got
    elif not parts:
        assert (got.status, got["Content-Range"]) == (416, f"bytes */{len(content)}")
    elif len(parts) == 1:
        ((first, last),) = parts
        assert (got.status, got.body) == (206, content[first : last + 1])
        assert got["Content-Range"] == f"bytes {first}-{last}/{len(content)}"
        assert fields_of(got, "content-range", "content-length") == whole
    else:
        assert got.status == 206
        assert "content-range" not in got
        assert fields_of(got, "content-type", "content-length") == {
            name: value for name, value in whole.items() if name != "content-type"
        }
        head = f"Content-Type: {got['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + got.body)
        assert message.get_content_type() == "multipart/byteranges"
        seen = []
        for part in message.get_payload():
            assert part["Content-Type"] == whole["content-type"]
            seen.append((part["Content-Range"], part.get_payload(decode=True)))
        assert seen == [(f"bytes {first}-{last}/{len(content)}", content[first : last + 1]) for first, last in parts]
        # Every line end is CRLF, and nothing is before the first boundary or after the last.
        boundary = message.get_boundary().encode()
        assert got.body.startswith((b"--" + boundary, b"\r\n--" + boundary))
        assert got.body.endswith(b"\r\n--" + boundary + b"--\r\n")


@pytest.mark.parametrize("name", FILES)
def test_ranges(server, name):
    content = FILES[name]
    step = len(content) // 1_000
    with server.client() as client:
        whole = fields_of(ask(client, f"/assets/{name}"), "content-length")
        for value, parts in RANGES:
            if name != "small.txt":
                value, parts = scaled(value, parts, step, len(content))
            got = ask(client, f"/assets/{name}", f"Range: {value}")
            check(got, content, parts, whole)


def scaled(value, parts, step, size):
    """The case with the ranges of a larger file."""
    if parts is None or not parts:
        return (value, parts) if parts is None else (f"bytes={size}-", [])
    return (
        "bytes=" + ",".join(f"{first * step}-{last * step + step - 1}" for first, last in parts),
        [(first * step, last * step + step - 1) for first, last in parts],
    )


def test_head_ignores_ranges(server):
    with server.client() as client:
        for value in ("bytes=0-1", "bytes=0-1,5-6", "bytes=99999999-"):
            got = ask(client, "/assets/small.txt", f"Range: {value}", method="HEAD")
            assert (got.status, got["Content-Length"]) == (200, "1000")


def test_several_range_fields_count_as_none(server):
    with server.client() as client:
        got = ask(client, "/assets/small.txt", "Range: bytes=0-1", "Range: bytes=3-4")
        assert (got.status, got.body) == (200, FILES["small.txt"])


def test_an_empty_file_has_no_range_but_a_last_part(server):
    for value in ("bytes=0-", "bytes=0-0", "bytes=5-"):
        got = server.get("/assets/empty.txt", f"Range: {value}")
        assert (got.status, got["Content-Range"]) == (416, "bytes */0")
    got = server.get("/assets/empty.txt", "Range: bytes=-5")
    assert (got.status, got.body) == (200, b"")


@pytest.mark.parametrize(("condition", "status"), [("{tag}", 206), ("W/{tag}", 200), (DATE, 206), (LATER, 200)])
@pytest.mark.parametrize("name", FILES)
def test_if_range(server, tags, name, condition, status):
    fields = ["Range: bytes=1-5", f"If-Range: {condition.replace('{tag}', tags[name])}"]
    got = server.get(f"/assets/{name}", *fields)
    assert got.status == status
    assert got.body == (FILES[name][1:6] if status == 206 else FILES[name])


def test_offsets_beyond_32_bits(server):
    first = (4 << 30) + 10
    size = 5 << 30
    with server.client() as client:
        got = ask(client, "/assets/huge.bin", f"Range: bytes={first}-{first + 13}")
        assert (got.status, got.body) == (206, b"beyond 32 bits")
        assert got["Content-Range"] == f"bytes {first}-{first + 13}/{size}"
        got = ask(client, "/assets/huge.bin", f"Range: bytes={first - 100_000}-{first + 200_000}")
        assert got.body == bytes(100_000) + b"beyond 32 bits" + bytes(199_987)
        got = ask(client, "/assets/huge.bin", f"Range: bytes=0-1,{first}-{first + 13},-3")
        message = email.message_from_bytes(f"Content-Type: {got['Content-Type']}\r\n\r\n".encode() + got.body)
        assert [part.get_payload(decode=True) for part in message.get_payload()] == [
            bytes(2), b"beyond 32 bits", bytes(3),
        ]  # fmt: skip
        assert ask(client, "/assets/huge.bin", method="HEAD")["Content-Length"] == str(size)
        got = ask(client, "/assets/huge.bin", f"Range: bytes={size}-")
        assert (got.status, got["Content-Range"]) == (416, f"bytes */{size}")
