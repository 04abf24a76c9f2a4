# ruff: noqa: SIM115 - these files are for the server to close
"""File objects and wsgi.file_wrapper: sent from their position to their end or to Content-Length (PEP 3333)."""

import contextlib
import functools
import glob
import io
import os
import socket
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
    """Requests twice on one connection: nothing may follow the first response."""
    exchange.serve(app)
    with exchange.client() as client:
        answers = []
        for _ in range(2):
            answers.append(client.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
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
        assert client.ask(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "HEAD").body == b""
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


class Reversing(io.RawIOBase):
    """A raw file that transforms what its descriptor gives, and tells the descriptor all the same."""

    def __init__(self, path):
        self.inner = open(path, "rb", buffering=0)

    def readable(self):
        return True

    def readinto(self, buffer):
        block = changed(self.inner.read(len(buffer)))
        buffer[: len(block)] = block
        return len(block)

    def fileno(self):
        return self.inner.fileno()

    def close(self):
        super().close()
        self.inner.close()


class ReadsOtherwise(io.BufferedReader):
    def read(self, size=-1, /):
        return changed(super().read(size))


class Delegating:
    """All but read() is the file's own."""

    def __init__(self, path):
        self.inner = open(path, "rb")

    def read(self, size):
        return changed(self.inner.read(size))

    def __getattr__(self, name):
        return getattr(self.inner, name)


def changed(block: bytes) -> bytes:
    return bytes(255 - byte for byte in block)


def _replaced(file, *names):
    for name in names or ("read",):
        own = getattr(file, name)
        setattr(file, name, lambda *size, own=own: changed(own(*size)))
    return file


def _raw_replaced(path):
    raw = open(path, "rb", buffering=0)
    own = raw.readinto

    def readinto(buffer):
        count = own(buffer)
        buffer[:count] = changed(bytes(buffer[:count]))
        return count

    raw.readinto = readinto
    return io.BufferedReader(raw)


def _temporary(path):
    file = tempfile.NamedTemporaryFile()
    file.write(path.read_bytes())
    file.seek(0)
    return file


def _wrapped_builtin(path):
    # What functools.wraps leaves on a function says nothing of what it does.
    class Wrapper:
        def __init__(self):
            file = open(path, "rb")
            own, self.close = file.read, file.close
            self.read = functools.wraps(own)(lambda size: changed(own(size)))
            self.read.__self__ = own.__self__

    return Wrapper()


CHANGING_FILES = {
    "attribute-of-a-raw-file": lambda path: _replaced(open(path, "rb", buffering=0)),
    "attribute-of-a-buffered-file": lambda path: _replaced(open(path, "rb")),
    "attribute-of-a-random-file": lambda path: _replaced(open(path, "r+b")),
    "attribute-of-a-bytesio": lambda path: _replaced(io.BytesIO(path.read_bytes())),
    "attribute-of-a-temporary-file": lambda path: _replaced(_temporary(path)),
    "read-and-read1": lambda path: _replaced(open(path, "rb"), "read", "read1"),
    "attribute-of-the-raw-file-below": _raw_replaced,
    "subclass": lambda path: ReadsOtherwise(open(path, "rb", buffering=0)),
    "another-raw-file": lambda path: io.BufferedReader(Reversing(path)),
    "raw-file-itself": Reversing,
    "delegating": Delegating,
    "function-that-looks-like-the-file-s": _wrapped_builtin,
}


@pytest.mark.parametrize("size", [1000, len(CONTENT)], ids=["small", "large"])
@pytest.mark.parametrize("make", CHANGING_FILES.values(), ids=CHANGING_FILES)
def test_a_file_wrapper_sends_what_read_gives(plain, tmp_path, make, size) -> None:
    path = tmp_path / "content"
    path.write_bytes(CONTENT[:size])
    assert plain.serve(serving(wrapped, lambda: make(path))).ask().body == changed(CONTENT[:size])


class IteratesOtherwise(io.BufferedReader):
    def __iter__(self):
        while block := self.read(100_000):
            yield changed(block)


class NextOtherwise(io.FileIO):
    def __next__(self):
        if block := self.read(100_000):
            return changed(block)
        raise StopIteration


class ReadsLinesOtherwise(io.FileIO):
    def readline(self, size=-1, /):
        return changed(self.read(100_000))


class LinesOfMemory(io.BytesIO):
    def __iter__(self):
        return iter([changed(self.getvalue())])


CHANGING_ITERABLES = {
    "iter": lambda path: IteratesOtherwise(open(path, "rb", buffering=0)),
    "next": NextOtherwise,
    "readline": ReadsLinesOtherwise,
    "bytesio": lambda path: LinesOfMemory(path.read_bytes()),
    "raw-below": lambda path: io.BufferedReader(Reversing(path)),
    "attribute-of-the-raw-file-below": _raw_replaced,
    "raw-file-itself": Reversing,
}


@pytest.mark.parametrize("size", [1000, len(CONTENT)], ids=["small", "large"])
@pytest.mark.parametrize("make", CHANGING_ITERABLES.values(), ids=CHANGING_ITERABLES)
def test_a_bare_file_sends_what_iterating_gives(plain, tmp_path, make, size) -> None:
    path = tmp_path / "content"
    path.write_bytes(CONTENT[:size])
    assert plain.serve(serving(bare, lambda: make(path))).ask().body == changed(CONTENT[:size])


@pytest.mark.parametrize(
    "make",
    [lambda path: _replaced(open(path, "rb")), lambda path: ReadsOtherwise(open(path, "rb", buffering=0))],
    ids=["attribute", "subclass"],
)
def test_iterating_a_file_does_not_call_read(plain, path, make) -> None:
    assert plain.serve(serving(bare, lambda: make(path))).ask().body == CONTENT


def by_sendfile(exchange, app) -> bool:
    ask = []

    def asking(environ, start_response):
        ask.append(environ["tailrace.delivery"])
        return app(environ, start_response)

    assert exchange.serve(asking).ask().status == 200
    return ask[0]()["delivery"] == "sendfile"


def _closed_by_the_response(path):
    # So does Django: django.core.handlers.wsgi.WSGIHandler.
    file = open(path, "rb")
    file.close = lambda own=file.close: own()
    return file


@pytest.mark.parametrize(
    "make",
    [
        lambda path: open(path, "rb"),
        lambda path: open(path, "rb", buffering=0),
        lambda path: open(path, "r+b"),
        _closed_by_the_response,
        _temporary,
        lambda path: (file := _temporary(path), file.seek(0), file.read(1))[0],
    ],
    ids=["buffered", "raw", "random", "close-replaced", "temporary", "temporary-read-before"],
)
def test_what_is_a_file_and_nothing_else_leaves_by_sendfile(plain, path, make) -> None:
    assert by_sendfile(plain, serving(wrapped, lambda: make(path)))


class WithDescriptor:
    """Reads something, whatever descriptor it tells."""

    def __init__(self, descriptor):
        self.descriptor, self.inner = descriptor, io.BytesIO(CONTENT)

    def read(self, size):
        return self.inner.read(size)

    def fileno(self):
        return self.descriptor


@pytest.mark.parametrize("descriptor", [-1, -(1 << 40), 1 << 40, "3", None, 999_999])
def test_a_descriptor_that_is_none_is_not_used(plain, path, descriptor) -> None:
    def with_attribute():
        file = open(path, "rb", buffering=0)
        file.fileno = lambda: descriptor
        return file

    for make in (lambda: WithDescriptor(descriptor), with_attribute):
        for response in twice(plain, serving(wrapped, make)):
            assert response.body == CONTENT


def test_a_descriptor_of_something_else_is_not_used(plain, tmp_path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    near, far = socket.socketpair()
    try:
        for descriptor in (directory, near.fileno()):
            assert plain.serve(serving(wrapped, lambda each=descriptor: WithDescriptor(each))).ask().body == CONTENT
    finally:
        os.close(directory)
        near.close()
        far.close()


def _closed(path):
    file = open(path, "rb")
    file.close()
    return file


@pytest.mark.parametrize(
    "make", [_closed, lambda path: open(path, "ab", buffering=0)], ids=["closed", "only-for-writing"]
)
def test_a_file_that_cannot_be_read_is_an_error(plain, path, way, make) -> None:
    assert plain.serve(serving(way, lambda: make(path))).ask().status == 500
    assert plain.serve(serving(way, lambda: open(path, "rb"))).ask().body == CONTENT


def _made_by_the_kernel() -> list[str]:
    """Files whose length the kernel tells as a page, or as nothing, whatever they have."""
    found = []
    for pattern in ("/sys/kernel/mm/transparent_hugepage/*", "/sys/devices/system/cpu/*", "/sys/kernel/*", "/proc/*"):
        for name in sorted(glob.glob(pattern)):
            if name.endswith(("/enabled", "/online", "/possible", "/vmcoreinfo", "/version", "/cpuinfo", "/cmdline")):
                with contextlib.suppress(OSError), open(name, "rb") as file:
                    if file.read():
                        found.append(name)
    return found


@pytest.mark.parametrize("name", _made_by_the_kernel())
def test_a_file_is_as_long_as_what_it_gives_and_not_as_the_kernel_says(plain, name, way) -> None:
    with open(name, "rb") as file:
        content = file.read()
    for response in twice(plain, serving(way, lambda: open(name, "rb"))):
        assert response.body == content


@pytest.mark.runs_with("greenlets")
@pytest.mark.parametrize("kind", ["FileObjectThread", "FileObjectPosix", "FileObjectBlock"])
@pytest.mark.parametrize("size", [1000, len(CONTENT)], ids=["small", "large"])
def test_a_file_object_of_gevent_s_arrives_whole(plain, path, way, kind, size) -> None:
    from gevent import fileobject

    os.truncate(path, size)

    def make():
        file = getattr(fileobject, kind)(path, "rb")
        file.read(1)
        return file

    for response in twice(plain, serving(way, make)):
        assert response.body == CONTENT[1:size]


# Reading a pipe blocks the hub, on which the one who writes into it waits for its turn.
@pytest.mark.runs_with("threads", "tls")
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

    plain.serve(app, client_memory="1MiB")
    for size in (10, 200_000):
        assert plain.ask(method="POST", body=b"x" * size).body == b"x" * size
