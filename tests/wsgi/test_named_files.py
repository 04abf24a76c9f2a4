"""Files that the application names: X-Sendfile and X-Accel-Redirect, with --sendfile-root."""

import base64
import contextlib
import os
import sys
import threading
from email.header import Header
from urllib.parse import quote

import pytest
from frameworks.process import await_that
from harness.peers import PEER

pytestmark = pytest.mark.skipif(bool(PEER), reason="an option of tailrace")

CONTENT = bytes(range(256)) * 2000
NAMES = [
    "a b.txt",
    "50%25 100%.txt",
    "é ü.txt",
    "日本 語.txt",
    "Ã©.txt",
    "=?utf-8?b?L2E=?=",
    "a;b:c~#?&.txt",
    ".hidden",
]


@pytest.fixture
def media(tmp_path):
    folder = tmp_path / "media"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "content.bin").write_bytes(CONTENT)
    (folder / "small.txt").write_bytes(b"small text")
    (folder / "empty").write_bytes(b"")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "media-x").mkdir()
    (tmp_path / "media-x" / "secret.txt").write_bytes(b"secret")
    set_old_time(folder / "small.txt", folder / "sub" / "content.bin", folder / "empty")
    return folder


def set_old_time(*paths):
    """Changed long ago, so that the files can be identified."""
    for path in paths:
        os.utime(path, (1_700_000_000, 1_700_000_000))


def naming(*fields, status="200 OK", body=(b"the application's",)):
    def app(environ, start_response):
        start_response(status, [("Content-Type", "text/x-own"), *((name, str(value)) for name, value in fields)])
        return body

    return app


@pytest.fixture
def ask(serve, media, plain):
    """`ask(fields, ...)`: the response to a request whose application names a file by these fields."""

    def ask(*fields, request=(), method="GET", roots=None, **given):
        plain.serve(naming(*fields, **given), sendfile_root=roots or [str(media), f"/protected={media}"])
        return plain.ask("/", *request, method=method)

    return ask


def by(field, media, name):
    return (field, f"{media}/{name}" if field == "X-Sendfile" else f"/protected/{quote(name)}")


FIELDS = pytest.mark.parametrize("field", ["X-Sendfile", "X-Accel-Redirect"])


@FIELDS
@pytest.mark.parametrize("name", ["sub/content.bin", "small.txt", "empty"])
def test_a_named_file_is_sent_in_place_of_the_body(ask, media, field, name):
    response = ask(by(field, media, name), ("Set-Cookie", "a=b"), ("Content-Length", "17"), ("X-Own", "1"))
    assert (response.status, response.body) == (200, (media / name).read_bytes())
    assert response["content-type"] == "text/x-own"
    assert (response["set-cookie"], response["x-own"]) == ("a=b", "1")
    assert response["content-length"] == str(len(response.body))
    assert response["accept-ranges"] == "bytes"
    assert response["last-modified"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert "etag" in response
    assert field not in response


@FIELDS
def test_without_the_option_the_fields_are_sent_to_the_client(plain, media, field):
    name, value = by(field, media, "small.txt")
    response = plain.serve(naming((name, value))).ask()
    assert (response.body, response[field]) == (b"the application's", value)


def unsent(caplog):
    return [text for record in caplog.records if "which is sent to the client" in (text := record.getMessage())]


def test_a_file_that_the_server_is_not_told_to_send_is_in_the_log_once(plain, media, caplog):
    name, value = by("X-Sendfile", media, "small.txt")
    plain.serve(naming((name, value), body=()))
    for _ in range(2):
        assert (plain.ask("/a").body, plain.ask("/b")[name]) == (b"", value)
    (line,) = unsent(caplog)
    assert line.startswith("GET /a: the application names a file in X-Sendfile, which is sent to the client")
    assert "Start with --sendfile-root FOLDER" in line


def test_a_response_that_may_have_no_body_is_no_reason_for_a_warning(plain, media, caplog):
    field = by("X-Sendfile", media, "small.txt")
    for status, method in (("200 OK", "HEAD"), ("304 Not Modified", "GET"), ("302 Found", "GET"), ("204 No", "GET")):
        plain.serve(naming(field, status=status, body=()))
        plain.ask("/", method=method)
    assert not unsent(caplog)


def test_fields_that_a_proxy_may_read_and_bodies_of_the_application_are_no_reason_for_a_warning(plain, media, caplog):
    for given in ({}, {"body": ()}):
        fields = [by("X-Accel-Redirect" if given else "X-Sendfile", media, "small.txt")]
        plain.serve(naming(*fields, **given))
        plain.ask()
    assert not unsent(caplog)


def test_each_field_needs_a_folder_of_its_kind(serve, media, plain):
    for roots, ours, theirs in (
        ([str(media)], "X-Sendfile", "X-Accel-Redirect"),
        ([f"/protected={media}"], "X-Accel-Redirect", "X-Sendfile"),
    ):
        fields = [by(field, media, "small.txt") for field in (ours, theirs)]
        response = plain.serve(naming(*fields), sendfile_root=roots).ask()
        assert response.body == b"small text"
        assert ours not in response
        assert response[theirs] == dict(fields)[theirs]


@FIELDS
def test_conditions_and_ranges_are_applied_to_a_named_file(plain, media, field):
    plain.serve(naming(by(field, media, "sub/content.bin")), sendfile_root=[str(media), f"/protected={media}"])
    whole = plain.ask()
    part = plain.ask("/", "Range: bytes=10-19", f"If-Range: {whole['etag']}")
    assert (part.status, part.body) == (206, CONTENT[10:20])
    assert part["content-range"] == f"bytes 10-19/{len(CONTENT)}"
    assert (part["content-type"], part["etag"]) == ("text/x-own", whole["etag"])
    assert plain.ask("/", "Range: bytes=10-19", 'If-Range: "other"').body == CONTENT
    parts = plain.ask("/", "Range: bytes=0-1,-2")
    assert parts.status == 206
    assert parts["content-type"].startswith("multipart/byteranges")
    assert CONTENT[:2] in parts.body and CONTENT[-2:] in parts.body and b"Content-Type: text/x-own" in parts.body
    beyond = plain.ask("/", f"Range: bytes={len(CONTENT)}-")
    assert (beyond.status, beyond["content-range"]) == (416, f"bytes */{len(CONTENT)}")
    assert "etag" not in beyond
    for fields in (f"If-None-Match: {whole['etag']}", f"If-Modified-Since: {whole['last-modified']}"):
        unchanged = plain.ask("/", fields)
        assert (unchanged.status, unchanged.body, unchanged["etag"]) == (304, b"", whole["etag"])
        assert "content-type" not in unchanged
    assert plain.ask("/", 'If-Match: "other"').status == 412


@FIELDS
def test_a_named_file_answers_head_and_other_methods_whole(plain, media, field):
    plain.serve(naming(by(field, media, "sub/content.bin")), sendfile_root=[str(media), f"/protected={media}"])
    head = plain.ask(method="HEAD")
    assert (head.status, head.body, head["content-length"]) == (200, b"", str(len(CONTENT)))
    posted = plain.ask("/", "Range: bytes=1-2", f"If-None-Match: {head['etag']}", method="POST", body=b"a=b")
    assert (posted.status, posted.body) == (200, CONTENT)


def test_the_validators_of_the_application_are_kept_and_decide(plain, media):
    given = [("ETag", '"own"'), ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT"), ("Cache-Control", "private")]
    plain.serve(naming(("X-Sendfile", f"{media}/small.txt"), *given), sendfile_root=str(media))
    for name, value in given:
        assert plain.ask()[name] == value
    assert plain.ask("/", 'If-None-Match: "own"').status == 304
    part = plain.ask("/", "Range: bytes=0-4", 'If-Range: "own"')
    assert (part.status, part.body, part["cache-control"]) == (206, b"small", "private")


def test_a_type_is_added_where_the_application_gives_none(plain, media):
    def app(environ, start_response):
        start_response("200 OK", [("X-Sendfile", f"{media}/small.txt")])
        return []

    assert plain.serve(app, sendfile_root=str(media)).ask()["content-type"] == "text/plain; charset=utf-8"


def test_a_coding_is_kept_where_the_name_of_the_file_has_it(ask, media):
    (media / "a.tar.gz").write_bytes(b"packed")
    assert ask(("X-Sendfile", f"{media}/a.tar.gz"), ("Content-Encoding", "gzip"))["content-encoding"] == "gzip"
    assert "content-encoding" not in ask(("X-Sendfile", f"{media}/small.txt"), ("Content-Encoding", "gzip"))


@pytest.mark.parametrize("name", NAMES)
def test_a_named_file_may_have_any_name(plain, media, name):
    (media / name).write_bytes(name.encode())
    path = f"{media}/{name}"
    values = [("X-Accel-Redirect", f"/protected/{quote(name)}"), ("X-Accel-Redirect", f"/protected/{quote(name)}?a=b")]
    # As Flask gives it, as Django does, and as PEP 3333 says.
    values += [("X-Sendfile", path), ("X-Sendfile", path.encode().decode("latin-1"))]
    values += [("X-Sendfile", Header(path, "utf-8", maxlinelen=sys.maxsize).encode())]
    values += [("X-Sendfile", f"=?utf-8?b?{base64.b64encode(path.encode()).decode()}?=")]
    for value in values:
        plain.serve(naming(value), sendfile_root=[str(media), f"/protected={media}"])
        assert plain.ask().body == name.encode(), value


def test_a_name_is_taken_as_it_is_before_any_other_reading(plain, media):
    (media / "é.txt").write_bytes(b"another")
    (media / "Ã©.txt").write_bytes(b"this one")
    (media / "a b").write_bytes(b"another")
    plain.serve(naming(("X-Sendfile", f"{media}/Ã©.txt")), sendfile_root=str(media))
    assert plain.ask().body == b"this one"
    plain.serve(naming(("X-Sendfile", f"{media}/a%20b")), sendfile_root=str(media))
    assert plain.ask().status == 404


def test_a_folder_has_its_links_name_and_its_own(plain, media, tmp_path):
    (tmp_path / "current").symlink_to(media)
    for root in (tmp_path / "current", media):
        (media / "in").unlink(missing_ok=True)
        plain.serve(naming(("X-Sendfile", f"{media}/small.txt")), sendfile_root=str(root))
        assert plain.ask().body == b"small text"
    plain.serve(naming(("X-Sendfile", f"{tmp_path}/current//./small.txt")), sendfile_root=str(tmp_path / "current"))
    assert plain.ask().body == b"small text"


REFUSED = {
    "X-Sendfile": {
        "{base}/secret.txt": "no folder of --sendfile-root",
        "{base}/media-x/secret.txt": "no folder of --sendfile-root",
        "{base}/media/../secret.txt": 'has ".."',
        "{base}/media/sub/../small.txt": 'has ".."',
        "{base}/media/missing.txt": "does not exist",
        "{base}/media/small.txt/x": "does not exist",
        "{base}/media/sub": "is a folder",
        "{base}/media/sub/": "is a folder",
        "{base}/media": "no folder of --sendfile-root",
        "{base}/media/out": "symbolic link",
        "{base}/media/pipe": "not a regular file",
        "{base}/media/a\\b": "backslash",
        "media/small.txt": "not an absolute path",
        "small.txt": "not an absolute path",
        "": "not an absolute path",
        "{base}/media/" + "a" * 300: "longer than the path of any file",
        "{base}/media/" + "a/" * 50_000 + "a": "longer than the path of any file",
        "/etc/passwd": "no folder of --sendfile-root",
        "{base}/media/\udc80": "does not exist",
        "/protected/small.txt": "no folder of --sendfile-root",
    },
    "X-Accel-Redirect": {
        "/protected/../secret.txt": '".."',
        "/protected/%2e%2e/secret.txt": '".."',
        "/protected/%2E%2E%2Fsecret.txt": "encoded slash",
        "/protected/missing.txt": "does not exist",
        "/protected/sub/": "is a folder",
        "/protected/sub": "is a folder",
        "/protected//small.txt": "two slashes",
        "/protected/a%00b": "control character",
        "/protected/a%": "hexadecimal",
        "/protected/a%ff": "not UTF-8",
        "/protected/out": "symbolic link",
        "/protected-x/small.txt": "no folder of --sendfile-root",
        "/small.txt": "no folder of --sendfile-root",
        "@named": "not a URL path",
        "http://example.org/protected/small.txt": "not a URL path",
        "{base}/media/small.txt": "no folder of --sendfile-root",
    },
}


def named_in(caplog):
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if " names " in text]


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_no_file_of_a_folder_is_answered_404_and_named_in_the_log(ask, media, caplog, field):
    (media / "out").symlink_to(media.parent / "secret.txt")
    os.mkfifo(media / "pipe")
    for value, reason in REFUSED[field].items():
        caplog.clear()
        value = value.format(base=media.parent)
        response = ask((field, value), ("Set-Cookie", "a=b"), ("ETag", '"own"'), ("Cache-Control", "max-age=60"))
        assert (response.status, response["set-cookie"]) == (404, "a=b"), value
        assert b"secret" not in response.body and b"application" not in response.body
        assert not {"etag", "cache-control", field.lower()} & {name.lower() for name, _ in response.fields}
        # Another thread writes the log.
        await_that(lambda: named_in(caplog))
        lines = named_in(caplog)
        assert len(lines) == 1 and reason in lines[0] and "answered 404" in lines[0], (value, lines)
        assert len(lines[0]) < 1000


@pytest.mark.parametrize("links", ["never", "follow"])
def test_links_of_a_named_file_are_those_of_the_option(plain, media, links):
    (media / "out").symlink_to(media.parent / "secret.txt")
    plain.serve(naming(("X-Sendfile", f"{media}/out")), sendfile_root=str(media), static_symlinks=links)
    assert plain.ask().status == (200 if links == "follow" else 404)


@pytest.mark.parametrize(
    "fields",
    [
        [("X-Sendfile", "{media}/a\nb")],
        [("X-Sendfile", "{media}/a\0b")],
        [("X-Accel-Redirect", "/protected/a\r\nX: y")],
        [("X-Sendfile", "{media}/small.txt"), ("x-sendfile", "{media}/small.txt")],
        [("X-Sendfile", "{media}/small.txt"), ("X-Accel-Redirect", "/protected/small.txt")],
    ],
    ids=["line-end", "nul", "fields-inside", "twice", "both"],
)
def test_fields_that_name_no_single_file_are_an_error_of_the_application(ask, media, caplog, fields):
    response = ask(*((name, value.format(media=media)) for name, value in fields))
    assert (response.status, "x" in response) == (500, False)
    # Another thread writes the log.
    await_that(lambda: any(record.exc_info for record in caplog.records))
    error = str(next(record.exc_info[1] for record in caplog.records if record.exc_info))
    assert error.startswith(('header "X-', 'headers "X-')), error


@pytest.mark.parametrize("status", ["404 Not Found", "302 Found", "201 Created", "500 Oops"])
def test_another_status_keeps_its_body_and_the_field_is_not_sent(ask, media, status):
    response = ask(("X-Sendfile", f"{media}/small.txt"), status=status)
    assert (response.status, response.body) == (int(status[:3]), b"the application's")
    assert "x-sendfile" not in response


def test_a_206_of_the_application_is_made_anew(ask, media):
    fields = [("X-Sendfile", f"{media}/small.txt"), ("Content-Range", "bytes 0-4/10"), ("Content-Length", "5")]
    part = ask(*fields, status="206 Partial Content", request=["Range: bytes=0-4"])
    assert (part.status, part.body, part["content-range"]) == (206, b"small", "bytes 0-4/10")
    whole = ask(*fields, status="206 Partial Content")
    assert (whole.status, whole.body) == (200, b"small text")
    assert "content-range" not in whole


class Body:
    """An iterable that counts."""

    def __init__(self, blocks=()):
        self.blocks, self.taken, self.closed = iter(blocks), 0, 0
        self.done = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        self.taken += 1
        return next(self.blocks)

    def close(self):
        self.closed += 1
        self.done.set()


def test_the_body_is_not_read_and_closed_once(ask, media):
    body = Body([b"a"] * 10)
    assert ask(("X-Sendfile", f"{media}/small.txt"), body=body).body == b"small text"
    assert body.done.wait(10)
    assert (body.taken, body.closed) == (0, 1)


@pytest.mark.parametrize("body", [[b"a", b"b"], b"ab", [b"x" * 100_000] * 3], ids=["list", "bytes", "large"])
def test_whatever_the_body_is_it_is_discarded_and_the_next_request_answered(plain, media, body):
    plain.serve(naming(("X-Sendfile", f"{media}/small.txt"), body=body), sendfile_root=str(media))
    with plain.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        assert [client.response().body for _ in range(3)] == [b"small text"] * 3


def test_a_generator_that_names_its_file_late_is_discarded(plain, media):
    ended = threading.Event()

    def app(environ, start_response):
        write = start_response("200 OK", [("X-Sendfile", f"{media}/small.txt")])
        write(b"dropped")
        try:
            yield b""
            yield b"dropped"
            yield b"dropped"
        finally:
            ended.set()

    assert plain.serve(app, sendfile_root=str(media)).ask().body == b"small text"
    assert ended.wait(10)


def test_an_error_after_the_file_was_named_is_a_page(plain, media):
    def fails(environ, start_response):
        start_response("200 OK", [("X-Sendfile", f"{media}/small.txt")])
        raise ValueError

    def recovers(environ, start_response):
        try:
            fails(environ, start_response)
        except ValueError:
            start_response("503 Later", [("Content-Type", "text/plain")], sys.exc_info())
            return [b"later"]

    assert plain.serve(fails, sendfile_root=str(media)).ask().status == 500
    response = plain.serve(recovers, sendfile_root=str(media)).ask()
    assert (response.status, response.body) == (503, b"later")


def test_the_thread_is_free_before_the_file_is_sent(plain, media):
    large = media / "large"
    with large.open("wb") as file:
        file.truncate(200 << 20)
    set_old_time(large)

    def app(environ, start_response):
        fields = [("X-Sendfile", str(large))] if environ["PATH_INFO"] == "/large" else []
        start_response("200 OK", fields)
        return [b"free"]

    plain.serve(app, sendfile_root=str(media), threads=1)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            slow = stack.enter_context(plain.client())
            slow.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        assert plain.ask().body == b"free"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_with_a_body_may_name_a_file(plain, media, stream):
    def app(environ, start_response):
        environ["wsgi.input"].read(3)
        start_response("200 OK", [("X-Sendfile", f"{media}/small.txt")])
        return []

    plain.serve(app, sendfile_root=str(media), stream_body=stream)
    with plain.client() as client:
        for _ in range(3):
            client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789")
            assert client.response("POST").body == b"small text"


def test_the_record_of_the_request_counts_what_was_sent_of_the_file(plain, media):
    kept = {}

    def app(environ, start_response):
        kept["delivery"] = environ["tailrace.delivery"]
        start_response("200 OK", [("X-Sendfile", f"{media}/sub/content.bin")])
        return []

    plain.serve(app, sendfile_root=str(media))
    assert plain.ask("/", "Range: bytes=0-9").status == 206
    await_that(lambda: kept["delivery"]()["ending"] == "complete")
    record = kept["delivery"]()
    assert (record["status"], record["bytes"]) == (206, 10)


@pytest.mark.parametrize("field", ["X-Sendfile", "X-Accel-Redirect"])
def test_many_clients_at_once_get_their_files(plain, media, field):
    for number in range(8):
        (media / f"{number}.bin").write_bytes(bytes([number]) * (number * 20_000 + 1))

    def app(environ, start_response):
        start_response("200 OK", [by(field, media, f"{environ['PATH_INFO'][1:]}.bin")])
        return []

    plain.serve(app, sendfile_root=[str(media), f"/protected={media}"])
    wrong = []

    def client(number):
        with plain.client() as connection:
            for _ in range(30):
                connection.send(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number)
                if connection.response().body != bytes([number]) * (number * 20_000 + 1):
                    wrong.append(number)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
