# ruff: noqa: SIM115 - these files are for the server to close
"""File objects and wsgi.file_wrapper: from their position, to their end or the promised length (PEP 3333)."""

from __future__ import annotations

import io
import os
import tempfile
import threading

import pytest
from harness.wire import Broken

TEXT = [("Content-Type", "application/octet-stream")]
CONTENT = bytes(range(256)) * 2000


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "content.bin"
    path.write_bytes(CONTENT)
    return path


def bare(environ, file):
    return file


def wrapped(environ, file):
    return environ["wsgi.file_wrapper"](file)


def wrapped_in_blocks(environ, file):
    return environ["wsgi.file_wrapper"](file, 1000)


class Passing:
    """What a middleware makes of a body: the wrapper is hidden, iteration and close() are left."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        return iter(self.inner)

    def close(self):
        self.inner.close()


class Changing(Passing):
    """As above, with blocks that are others than the wrapper's."""

    def __iter__(self):
        for block in self.inner:
            yield block[:1]
            yield block[1:]


def in_passing_middleware(environ, file):
    return Passing(environ["wsgi.file_wrapper"](file))


def in_changing_middleware(environ, file):
    return Changing(environ["wsgi.file_wrapper"](file, 8192))


WAYS = {
    "bare": bare,
    "wrapped": wrapped,
    "wrapped-in-blocks": wrapped_in_blocks,
    "in-passing-middleware": in_passing_middleware,
    "in-changing-middleware": in_changing_middleware,
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def serving(way, make, fields=TEXT, status="200 OK"):
    def app(environ, start_response):
        file = make()
        start_response(status, list(fields))
        return way(environ, file)

    return app


def twice(exchange, app):
    """The same on one connection twice: nothing may follow the first response."""
    exchange.serve(app)
    with exchange.client() as client:
        answers = []
        for _ in range(2):
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            answers.append(client.response())
        return answers


@pytest.mark.parametrize("buffering", [0, -1], ids=["raw", "buffered"])
def test_a_file_arrives_whole(exchange, path, way, buffering) -> None:
    for response in twice(exchange, serving(way, lambda: open(path, "rb", buffering=buffering))):
        assert response.body == CONTENT


@pytest.mark.parametrize("buffering", [0, -1], ids=["raw", "buffered"])
@pytest.mark.parametrize("consumed", [1, 5, 100_000, len(CONTENT)])
def test_a_file_starts_where_it_was_read_to(plain, path, way, buffering, consumed) -> None:
    # The descriptor of a buffered file is further on than the file: tell() is what counts.
    def make():
        file = open(path, "rb", buffering=buffering)
        file.read(consumed)
        return file

    for response in twice(plain, serving(way, make)):
        assert response.body == CONTENT[consumed:]


def test_a_file_starts_where_it_was_sought_to(plain, path, way) -> None:
    def make():
        file = open(path, "rb")
        file.read(10)
        file.seek(200_000)
        return file

    assert plain.serve(serving(way, make)).ask().body == CONTENT[200_000:]


@pytest.mark.parametrize("length", [0, 1, 1000, 300_000, len(CONTENT)])
def test_a_content_length_shorter_than_the_file_ends_it(plain, path, way, length) -> None:
    for response in twice(plain, serving(way, lambda: open(path, "rb"), [*TEXT, ("Content-Length", str(length))])):
        assert (response.body, response.framing) == (CONTENT[:length], "length")


def test_a_content_length_longer_than_the_file_breaks_visibly(plain, path, way) -> None:
    plain.serve(serving(way, lambda: open(path, "rb"), [*TEXT, ("Content-Length", str(len(CONTENT) + 1))]))
    try:
        assert plain.ask().status == 500
    except Broken as broken:
        assert broken.response is None or CONTENT.startswith(broken.response.body)


@pytest.mark.parametrize("way", ["bare", "wrapped"])
def test_a_file_gets_a_content_length(plain, path, way) -> None:
    response = plain.serve(serving(WAYS[way], lambda: open(path, "rb"))).ask()
    assert (response.framing, response.body) == ("length", CONTENT)


def test_an_empty_file_is_an_empty_body_once(plain, tmp_path, way) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for response in twice(plain, serving(way, lambda: open(empty, "rb"))):
        assert response.body == b""
        assert response.chunks in ([], [0])


def test_head_sends_no_byte_of_a_file(plain, path, way) -> None:
    plain.serve(serving(way, lambda: open(path, "rb")))
    with plain.client() as client:
        client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.response("HEAD").body == b""
        assert client.response().body == CONTENT


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_no_byte_of_a_file_where_there_must_be_no_body(plain, path, way, status) -> None:
    for response in twice(plain, serving(way, lambda: open(path, "rb"), [], status)):
        assert response.status == int(status[:3])


def test_a_file_arrives_whole_in_http_1_0(plain, path, way) -> None:
    assert plain.serve(serving(way, lambda: open(path, "rb"))).ask(version="1.0").body == CONTENT


@pytest.mark.parametrize(
    "make",
    [
        lambda: io.BytesIO(CONTENT),
        lambda: io.BufferedReader(io.BytesIO(CONTENT)),
        lambda: _spooled(),
        lambda: _only_read(),
        lambda: _fake_descriptor(),
    ],
    ids=["bytesio", "buffered-bytesio", "spooled", "only-read", "fileno-raises"],
)
def test_what_has_no_descriptor_is_read(plain, make) -> None:
    assert plain.serve(serving(wrapped, make)).ask().body == CONTENT


def _spooled():
    file = tempfile.SpooledTemporaryFile(max_size=10_000_000)
    file.write(CONTENT)
    file.seek(0)
    return file


def _only_read():
    class OnlyRead:
        def __init__(self):
            self.inner = io.BytesIO(CONTENT)

        def read(self, size):
            return self.inner.read(size)

    return OnlyRead()


def _fake_descriptor():
    class Fake(io.BytesIO):
        def fileno(self):
            raise io.UnsupportedOperation("fileno")

    return Fake(CONTENT)


def test_a_bytesio_starts_where_it_was_read_to(plain, way) -> None:
    def make():
        file = io.BytesIO(CONTENT)
        file.read(7)
        return file

    assert plain.serve(serving(way, make)).ask().body == CONTENT[7:]


def test_a_transforming_file_is_read_and_not_sent_from_its_descriptor(plain, tmp_path) -> None:
    import gzip

    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(CONTENT))
    # GzipFile has a fileno(), of the packed file.
    assert plain.serve(serving(wrapped, lambda: gzip.open(packed, "rb"))).ask().body == CONTENT


def test_a_pipe_is_read_to_its_end(plain, way) -> None:
    def make():
        reader, writer = os.pipe()

        def feed():
            with open(writer, "wb") as pipe:
                pipe.write(CONTENT)

        threading.Thread(target=feed, daemon=True).start()
        return open(reader, "rb", buffering=0)

    assert plain.serve(serving(way, make)).ask().body == CONTENT


def test_the_output_of_a_process_is_a_body(plain) -> None:
    import subprocess

    made = []

    def make():
        made.append(subprocess.Popen(["printf", "from a process"], stdout=subprocess.PIPE))
        return made[-1].stdout

    assert plain.serve(serving(wrapped, make)).ask().body == b"from a process"
    assert made[0].wait(10) == 0


def test_a_file_that_shrinks_meanwhile_breaks_visibly(plain, tmp_path, way) -> None:
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(200 << 20)
    plain.serve(serving(way, lambda: open(large, "rb"), [*TEXT, ("Content-Length", str(200 << 20))]))
    with plain.client(deadline=20) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        head = client.head()
        os.truncate(large, 1000)
        with pytest.raises(Broken):
            client.body_of(head)
    # The others are served as before.
    large.write_bytes(b"short")
    with pytest.raises(Broken):
        plain.ask()


def test_a_text_file_that_middleware_reads_is_an_error(plain, tmp_path) -> None:
    text = tmp_path / "text"
    text.write_text("text")
    assert plain.serve(serving(in_passing_middleware, lambda: open(text))).ask().status == 500


def test_the_wrapper_is_an_iterable_of_blocks_with_a_close(plain, path) -> None:
    seen = {}

    def app(environ, start_response):
        file = open(path, "rb")
        wrapper = environ["wsgi.file_wrapper"](file, 100_000)
        # The block size is a suggestion.
        seen["content"] = b"".join(wrapper)
        wrapper.close()
        seen["closed"] = file.closed
        start_response("200 OK", TEXT)
        return [b"ok"]

    assert plain.serve(app).ask().body == b"ok"
    assert seen == {"content": CONTENT, "closed": True}


def test_descriptors_do_not_leak(plain, path, way) -> None:
    plain.serve(serving(way, lambda: open(path, "rb")))
    plain.ask()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert plain.ask().body == CONTENT
    opened = [name for name in set(os.listdir("/proc/self/fd")) - before if _names(name, path)]
    # The last one may be let go a moment after its response.
    assert len(opened) <= 1


def _names(descriptor: str, path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:
        return False


def test_a_file_in_environ_s_own_input_is_echoed(plain) -> None:
    def app(environ, start_response):
        start_response("200 OK", TEXT)
        return environ["wsgi.file_wrapper"](environ["wsgi.input"])

    plain.serve(app, body_memory=1000)
    for size in (10, 100_000):
        assert plain.ask(method="POST", body=b"x" * size).body == b"x" * size
