"""What an iterable gives when its response is complete: it is run to its end, within bounds, and what it gives is dropped."""

import itertools
import threading

import pytest
from server.probes import eventually

TEXT = [("Content-Type", "text/plain")]
SIZED = [*TEXT, ("Content-Length", "4")]


class Told:
    """What became of one iterable, in order."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.closed = threading.Event()

    def close(self) -> None:
        self.order.append("closed")
        self.closed.set()

    def wait(self) -> list[str]:
        assert self.closed.wait(20), f"close() was not called: {self.order}"
        return self.order


class Iterable(Told):
    """`close()` is the last that is called."""

    def __init__(self, blocks) -> None:
        super().__init__()
        self.blocks = blocks

    def __iter__(self):
        yield from self.blocks
        self.order.append("end")


class Iterator(Told):
    """No generator at all."""

    def __init__(self, blocks) -> None:
        super().__init__()
        self.blocks = iter(blocks)

    def __iter__(self):
        return self

    def __next__(self):
        for block in self.blocks:
            return block
        self.order.append("end")
        raise StopIteration


class File(Told):
    """A file-like object, for the wrapper."""

    def __init__(self, blocks) -> None:
        super().__init__()
        self.blocks = iter(blocks)

    def read(self, size=-1):
        block = next(self.blocks, b"")
        if not block:
            self.order.append("end")
        return block


SHAPES = {"iterable": Iterable, "iterator": Iterator, "file": File}


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


def serve(exchange, make, fields=SIZED, status="200 OK", **options):
    """Serves it; the iterables as they are made."""
    made: list[Told] = []

    def app(environ, start_response):
        start_response(status, list(fields))
        made.append(make())
        return environ["wsgi.file_wrapper"](made[-1]) if isinstance(made[-1], File) else made[-1]

    exchange.serve(app, **options)
    return made


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("blocks", [[b"abcd"], [b"ab", b"cd"], [b"a", b"b", b"c", b"d"]], ids=["one", "two", "four"])
def test_the_code_behind_the_last_block_runs(plain, shape, blocks, method) -> None:
    made = serve(plain, lambda: shape(blocks))
    assert plain.ask(method=method).body == (b"" if method == "HEAD" else b"abcd")
    assert made[0].wait() == ["end", "closed"]


def test_the_code_behind_many_quick_blocks_runs(plain, shape) -> None:
    made = serve(plain, lambda: shape([b"x" * 10] * 5000), [*TEXT, ("Content-Length", "50000")])
    assert plain.ask().body == b"x" * 50_000
    assert made[0].wait() == ["end", "closed"]


def test_the_code_behind_the_last_block_runs_under_the_validator(exchange) -> None:
    made = serve(exchange, lambda: Iterable([b"ab", b"cd"]))
    assert exchange.ask().body == b"abcd"
    assert made[0].wait() == ["end", "closed"]


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_the_code_behind_blocks_that_are_no_body_runs(plain, shape, status) -> None:
    made = serve(plain, lambda: shape([b"ab", b"cd"]), [], status)
    assert plain.ask().status == int(status[:3])
    assert made[0].wait() == ["end", "closed"]


def test_a_generator_runs_to_its_end_and_is_not_closed_before(plain) -> None:
    order = []
    ended = threading.Event()

    def app(environ, start_response):
        start_response("200 OK", SIZED)
        try:
            yield b"abcd"
            order.append("after the last block")
        except GeneratorExit:
            order.append("closed before its end")
        finally:
            ended.set()

    assert plain.serve(app).ask().body == b"abcd"
    assert ended.wait(20)
    assert order == ["after the last block"]


@pytest.mark.parametrize("blocks", [[b"abcd"], [b"a"] * 4, [b"x" * 300_000] * 4], ids=["one", "four", "large"])
def test_the_client_has_its_response_before_the_rest_runs(plain, blocks) -> None:
    # And its connection goes on.
    read = threading.Event()
    seen = []

    def endings():
        yield from blocks
        seen.append(read.wait(20))

    length = sum(map(len, blocks))
    made = serve(plain, lambda: Iterable(endings()), [*TEXT, ("Content-Length", str(length))], threads=2)
    with plain.client() as client:
        for _ in range(2):
            assert len(client.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").body) == length
        assert not seen
        read.set()
    for each in made:
        assert each.wait() == ["end", "closed"]
    assert seen == [True, True]


ENDLESS = {
    "bytes": lambda: itertools.chain([b"ab", b"cd"], itertools.repeat(b"x" * 1000)),
    "nothing": lambda: itertools.chain([b"ab", b"cd"], itertools.repeat(b"")),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_never_ends_is_closed(plain, kind, method) -> None:
    made = serve(plain, lambda: Iterable(ENDLESS[kind]()))
    assert plain.ask(method=method).status == 200
    assert made[0].wait() == ["closed"]


def test_a_file_that_never_ends_is_closed(plain) -> None:
    made = serve(plain, lambda: File(itertools.chain([b"ab", b"cd"], itertools.repeat(b"x" * 1000))))
    assert plain.ask().body == b"abcd"
    assert made[0].wait() == ["closed"]


def test_others_are_served_while_the_rest_runs(plain) -> None:
    # Fails when a greenlet keeps its hub from them: then each comes after the rest. On a busy machine one may, too: the rest
    # runs for a second at most.
    made: list[Iterable] = []
    seen = []

    def app(environ, start_response):
        start_response("200 OK", SIZED)
        if environ["PATH_INFO"] == "/after":
            seen.append(made[-1].closed.is_set())
            return [b"abcd"]
        made.append(Iterable(itertools.chain([b"abcd"], itertools.repeat(b""))))
        return made[-1]

    plain.serve(app, threads=2)
    for _ in range(5):
        with plain.client() as client:
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /after HTTP/1.1\r\nHost: a\r\n\r\n")
            for _ in range(2):
                assert client.response().body == b"abcd"
        assert made[-1].wait() == ["closed"]
        if seen[-1] is False:
            break
    assert False in seen


def warnings(caplog) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if "more than the response may contain" in record.getMessage()
    ]


def test_what_is_dropped_is_said_once_for_a_path(plain, caplog) -> None:
    made = serve(plain, lambda: Iterable([b"ab", b"cd", b"efg"]))
    for target in ("/a", "/a?again", "/b"):
        assert plain.ask(target).body == b"abcd"
    for each in made:
        each.wait()
    assert [text.split(":")[0] for text in warnings(caplog)] == ["GET /a", "GET /b"]
    assert "3 bytes were dropped. Correct its Content-Length" in warnings(caplog)[0]


def test_nothing_is_said_of_what_is_as_long_as_promised_nor_of_a_head(plain, caplog) -> None:
    made = serve(plain, lambda: Iterable([b"ab", b"cd"]))
    plain.ask()
    plain.ask(method="HEAD")
    for each in made:
        each.wait()
    assert not warnings(caplog)


def test_an_exception_in_the_rest_is_logged_and_the_connection_lives(plain, shape, caplog) -> None:
    def failing():
        yield b"abcd"
        raise RuntimeError("in the rest")

    made = serve(plain, lambda: shape(failing()))
    with plain.client() as client:
        for _ in range(2):
            assert client.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").body == b"abcd"
    for each in made:
        assert each.wait() == ["closed"]
    assert "after its response was complete" in caplog.text
    assert "in the rest" in caplog.text


def test_what_has_less_than_promised_is_not_run_again(plain) -> None:
    calls = []

    class Once(Iterator):
        def __next__(self):
            calls.append(1)
            return super().__next__()

    made = serve(plain, lambda: Once([b"ab"]), TEXT)
    assert plain.ask().body == b"ab"
    assert made[0].wait() == ["end", "closed"]
    assert len(calls) == 2


def test_a_block_that_goes_beyond_the_length_is_said_once_for_a_path(plain, caplog) -> None:
    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
        return [b"hello world"]

    plain.serve(app)
    for target in ("/a", "/a?again", "/b"):
        assert plain.ask(target).body == b"hello"
    # It is logged when the response has left.
    eventually(lambda: len(caplog.records) == 2, "both paths are in the log")
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in said] == ["GET /a", "GET /b"]
    assert "more than its Content-Length of 5; 6 bytes were dropped. Correct the field, or omit it" in said[0]


def test_a_block_beyond_the_length_and_more_after_it_are_said_once(plain, caplog) -> None:
    made = serve(plain, lambda: Iterable([b"ab", b"cdef", b"gh"]))
    for target in ("/a%20b", "/a%20b?again"):
        assert plain.ask(target).body == b"abcd"
    for each in made:
        each.wait()
    assert [text.split(":")[0] for text in (record.getMessage() for record in caplog.records)] == ["GET /a%20b"]


def test_a_field_that_is_not_the_applications_is_said_once_for_a_path(plain, caplog) -> None:
    def app(environ, start_response):
        field = environ["QUERY_STRING"].split("=")
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2"), (field[0], field[1])])
        return [b"ok"]

    plain.serve(app)
    for target in (
        "/a?Transfer-Encoding=chunked",
        "/a?transfer-encoding=chunked",
        "/b?Transfer-Encoding=chunked",
        "/a?Connection=keep-alive",
        "/a?Connection=close",
        "/a?X-Other=1",
    ):
        assert plain.ask(target).body == b"ok"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3, said
    assert said[0].startswith(
        "GET /a?Transfer-Encoding=chunked: the application's field Transfer-Encoding was dropped: "
    )
    assert "so omit it" in said[0]
    assert said[1].startswith("GET /b?Transfer")
    assert "field Connection was dropped: the application may use only its option close" in said[2]
