# ruff: noqa: SIM115 - these files are for the server to close
"""Conditions and ranges of responses by wsgi.file_wrapper that have validators of their own."""

import io
import threading

import pytest
from harness.peers import PEER

pytestmark = pytest.mark.skipif(bool(PEER), reason="other servers leave them to the application")

CONTENT = bytes(range(256)) * 1000
MODIFIED = ("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT")
ETAG = ("ETag", '"own"')
SINCE = f"If-Modified-Since: {MODIFIED[1]}"
PART = "Range: bytes=10-19"


@pytest.fixture(params=["large", "small"])
def path(tmp_path, request):
    path = tmp_path / "content.bin"
    path.write_bytes(CONTENT if request.param == "large" else CONTENT[:1000])
    return path


def wrapping(path, *fields, status="200 OK", make=None, wrap=True):
    def app(environ, start_response):
        file = make() if make else open(path, "rb")
        start_response(status, [("Content-Type", "text/x-own"), *fields])
        return environ["wsgi.file_wrapper"](file) if wrap else file

    return app


def plainly(response):
    """All of a response but what differs from one to the next."""
    return response.status, [field for field in response.fields if field[0] != "Date"], response.body


@pytest.mark.parametrize("fields", [[ETAG], [MODIFIED], [ETAG, MODIFIED]], ids=["etag", "modified", "both"])
def test_a_wrapped_file_with_validators_is_sent_in_part(plain, path, fields):
    content = path.read_bytes()
    plain.serve(wrapping(path, *fields, ("Set-Cookie", "a=b"), ("Content-Length", str(len(content)))))
    whole = plain.ask()
    assert (whole.status, whole.body, whole["accept-ranges"]) == (200, content, "bytes")
    part = plain.ask("/", PART)
    assert (part.status, part.body, part["content-range"]) == (206, content[10:20], f"bytes 10-19/{len(content)}")
    assert (part["content-length"], part["set-cookie"], part["content-type"]) == ("10", "a=b", "text/x-own")
    for name, value in fields:
        assert part[name] == value
    parts = plain.ask("/", "Range: bytes=0-1,-2")
    assert parts.status == 206
    assert parts.body.count(b"Content-Type: text/x-own") == 2
    assert len(parts.body) == int(parts["content-length"])
    beyond = plain.ask("/", f"Range: bytes={len(content)}-")
    assert (beyond.status, beyond["content-range"]) == (416, f"bytes */{len(content)}")
    head = plain.ask("/", PART, method="HEAD")
    assert (head.status, head["content-length"]) == (200, str(len(content)))


def test_a_condition_decides_about_a_wrapped_file(plain, path):
    content = path.read_bytes()
    plain.serve(wrapping(path, ETAG, MODIFIED, ("Cache-Control", "max-age=1"), ("Content-Disposition", "inline")))
    for field in ('If-None-Match: "a", W/"own"', "If-None-Match: *", SINCE):
        for method in ("GET", "HEAD"):
            unchanged = plain.ask("/", field, method=method)
            assert (unchanged.status, unchanged.body, unchanged["etag"]) == (304, b"", '"own"')
            assert unchanged["cache-control"] == "max-age=1"
            assert not {"content-type", "content-disposition"} & {name.lower() for name, _ in unchanged.fields}
    failed = plain.ask("/", 'If-Match: "other"')
    assert (failed.status, "etag" in failed) == (412, False)
    for field in ('If-None-Match: "a"', "If-Modified-Since: Mon, 13 Nov 2023 22:13:20 GMT", 'If-Match: "own"'):
        assert plain.ask("/", field).body == content
    assert plain.ask("/", PART, 'If-Range: "own"').body == content[10:20]
    assert plain.ask("/", PART, 'If-Range: "other"').body == content


def test_a_time_that_is_not_over_is_no_validator(plain, path):
    content = path.read_bytes()
    later = "Fri, 31 Dec 9999 23:59:59 GMT"
    plain.serve(wrapping(path, ("Last-Modified", later)))
    assert plain.ask()["last-modified"] == later
    assert plain.ask("/", f"If-Modified-Since: {later}").status == 200
    for fields in ([PART], [PART, f"If-Range: {later}"]):
        response = plain.ask("/", *fields)
        assert (response.status, response.body) == (200, content)


@pytest.mark.parametrize("consumed", [1, 100, 999])
def test_the_representation_is_what_would_have_been_sent(plain, path, consumed):
    content = path.read_bytes()

    def make():
        file = open(path, "rb")
        file.read(consumed)
        return file

    plain.serve(wrapping(path, ETAG, make=make))
    part = plain.ask("/", "Range: bytes=-1")
    length = len(content) - consumed
    assert (part.status, part.body, part["content-range"]) == (
        206,
        content[-1:],
        f"bytes {length - 1}-{length - 1}/{length}",
    )
    assert plain.ask("/", "Range: bytes=0-0").body == content[consumed : consumed + 1]
    plain.serve(wrapping(path, ETAG, ("Content-Length", "1"), make=make))
    assert plain.ask("/", "Range: bytes=0-9")["content-range"] == "bytes 0-0/1"
    assert plain.ask("/", "Range: bytes=1-").status == 416


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ([], {}),
        ([ETAG, ("ETag", '"other"')], {}),
        ([ETAG, ("Content-Encoding", "gzip")], {}),
        ([ETAG, ("Content-Range", "bytes 0-9/10")], {}),
        ([ETAG, ("Content-Type", "multipart/byteranges; boundary=a")], {}),
        ([ETAG], {"status": "206 Partial Content"}),
        ([ETAG], {"status": "404 Not Found"}),
        ([ETAG], {"wrap": False}),
    ],
    ids=["no-validator", "two-tags", "coded", "range", "parts", "206", "404", "bare"],
)
def test_other_responses_stay_as_the_application_made_them(plain, path, fields, options):
    if any(name == "Content-Type" for name, _ in fields):

        def app(environ, start_response):
            start_response("200 OK", list(fields))
            return environ["wsgi.file_wrapper"](open(path, "rb"))

        plain.serve(app)
    else:
        plain.serve(wrapping(path, *fields, **options))
    plainest = plainly(plain.ask())
    assert "accept-ranges" not in {name.lower() for name, _ in plainest[1]}
    assert plainest[2] == path.read_bytes()
    for asked in ((PART,), ("If-None-Match: *",), (PART, 'If-Range: "own"')):
        assert plainly(plain.ask("/", *asked)) == plainest


def test_a_file_whose_read_gives_other_bytes_is_left_alone(plain, path):
    class Other(io.FileIO):
        def read(self, size=-1):
            return super().read(size).swapcase()

    for make in (lambda: Other(path), lambda: io.BytesIO(path.read_bytes())):
        plain.serve(wrapping(path, ETAG, make=make))
        assert plain.ask("/", PART).status == 200


def test_an_application_that_refuses_ranges_gets_none(plain, path):
    plain.serve(wrapping(path, ETAG, ("Accept-Ranges", "none")))
    assert plainly(plain.ask("/", PART)) == plainly(plain.ask())
    assert plain.ask("/", 'If-None-Match: "own"').status == 304


def test_other_methods_are_answered_whole(plain, path):
    plain.serve(wrapping(path, ETAG))
    response = plain.ask("/", PART, 'If-None-Match: "own"', method="POST", body=b"a")
    assert (response.status, response.body) == (200, path.read_bytes())


def test_a_file_shorter_than_its_length_breaks_the_connection_as_before(plain, path):
    from harness.wire import Broken

    plain.serve(wrapping(path, ETAG, ("Content-Length", str(path.stat().st_size + 1))))
    with pytest.raises(Broken):
        plain.ask("/", PART)


def test_the_file_is_closed_whatever_was_sent(plain, path):
    closed = threading.Semaphore(0)

    class File:
        def __init__(self):
            self.file = open(path, "rb")
            self.read = self.file.read
            self.fileno = self.file.fileno

        def close(self):
            self.file.close()
            closed.release()

    plain.serve(wrapping(path, ETAG, make=File))
    for fields in ([], [PART], ['If-None-Match: "own"'], ['If-Match: "a"'], ["Range: bytes=9999999-"]):
        plain.ask("/", *fields)
        assert closed.acquire(timeout=10)
