"""start_response and write(): late, twice, with exc_info, never (PEP 3333, "The start_response() Callable")."""

import sys

import pytest
from harness.wire import Broken

TEXT = [("Content-Type", "text/plain")]


def boom():
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        return sys.exc_info()


def test_start_response_may_be_called_inside_the_generator(exchange) -> None:
    def app(environ, start_response):
        start_response("200 OK", [*TEXT, ("X-Late", "yes")])
        yield b"late"

    response = exchange.serve(app).ask()
    assert (response.body, response["x-late"]) == (b"late", "yes")


def test_start_response_may_be_called_by_the_first_next(plain) -> None:
    class Lazy:
        def __init__(self, start_response):
            self.start_response, self.blocks = start_response, iter([b"a", b"b"])

        def __iter__(self):
            return self

        def __next__(self):
            if self.start_response:
                self.start_response("202 Accepted", TEXT)
                self.start_response = None
            return next(self.blocks)

    response = plain.serve(lambda environ, start_response: Lazy(start_response)).ask()
    assert (response.status, response.body) == (202, b"ab")


def test_start_response_takes_keywords_by_position_only_or_exc_info_by_name(plain) -> None:
    def app(environ, start_response):
        start_response("200 OK", TEXT, exc_info=None)
        return [b"ok"]

    assert plain.serve(app).ask().body == b"ok"


@pytest.mark.parametrize("body", ["list", "generator"])
def test_a_second_start_response_without_exc_info_is_an_error(plain, body) -> None:
    def app(environ, start_response):
        start_response("200 OK", [*TEXT, ("X-First", "yes")])
        start_response("201 Created", TEXT)
        return [b"ok"]

    def generator(environ, start_response):
        yield from app(environ, start_response)

    assert plain.serve(app if body == "list" else generator).ask().status == 500


def test_a_second_start_response_raises_inside_the_application(plain) -> None:
    raised = []

    def app(environ, start_response):
        start_response("200 OK", TEXT)
        try:
            start_response("201 Created", TEXT)
        except Exception as error:
            raised.append(error)
        return [b"ok"]

    assert plain.serve(app).ask().body == b"ok"
    assert len(raised) == 1


def test_exc_info_before_the_head_replaces_the_response(exchange) -> None:
    def app(environ, start_response):
        start_response("200 OK", [*TEXT, ("X-First", "yes"), ("Content-Length", "100")])
        start_response("500 Oops", [*TEXT, ("X-Second", "yes")], boom())
        return [b"sorry"]

    response = exchange.serve(app).ask()
    assert (response.status, response.reason, response.body) == (500, "Oops", b"sorry")
    assert "x-first" not in response
    assert response["x-second"] == "yes"


def test_exc_info_after_empty_blocks_replaces_the_response(exchange) -> None:
    def app(environ, start_response):
        start_response("200 OK", TEXT)
        yield b""
        start_response("500 Oops", TEXT, boom())
        yield b"sorry"

    response = exchange.serve(app).ask()
    assert (response.status, response.body) == (500, b"sorry")


def test_exc_info_after_the_head_is_raised_again(plain) -> None:
    raised = []

    def app(environ, start_response):
        start_response("200 OK", TEXT)
        yield b"first"
        try:
            start_response("500 Oops", TEXT, boom())
        except RuntimeError as error:
            raised.append(str(error))
            raise

    plain.serve(app)
    with pytest.raises(Broken) as broken:
        plain.ask()
    assert broken.value.response.body == b"first"
    assert raised == ["boom"]


def test_exc_info_alone_is_a_first_call(exchange) -> None:
    def app(environ, start_response):
        start_response("503 Busy", TEXT, boom())
        return [b"later"]

    assert exchange.serve(app).ask().status == 503


@pytest.mark.parametrize(
    "arguments",
    [
        (200, TEXT),
        (b"200 OK", TEXT),
        (None, TEXT),
        ("200 OK", None),
        ("200 OK", {"a": "b"}),
        ("200 OK", [("a",)]),
        ("200 OK", [("a", "b", "c")]),
        ("200 OK", ["ab"]),
        ("200 OK", [("a", 1)]),
        ("200 OK", [(b"a", "b")]),
        ("200 OK", [("a", b"b")]),
        ("200 OK", [("a", None)]),
        ("200 OK", [(1, "b")]),
        ("200 \u20ac", TEXT),
        ("200 OK", [("a", "\u20ac")]),
        ("200 O\nK", TEXT),
        (),
        ("200 OK",),
    ],
    ids=repr,
)
def test_wrong_arguments_are_an_error_of_the_application(plain, arguments) -> None:
    def app(environ, start_response):
        start_response(*arguments)
        return [b"hello"]

    plain.serve(app)
    assert plain.ask().status == 500
    assert plain.ask().status == 500, "the server goes on"


def test_string_subclasses_and_header_tuples_of_subclasses_are_taken(plain) -> None:
    class Text(str):
        __slots__ = ()

    def app(environ, start_response):
        start_response(Text("200 OK"), [(Text("X-A"), Text("b"))])
        return [b"ok"]

    response = plain.serve(app).ask()
    assert (response.status, response["x-a"]) == (200, "b")


def test_the_header_list_may_change_after_the_call(plain) -> None:
    # PEP 3333: start_response may not be affected later, since the server may have sent the head already or not.
    def app(environ, start_response):
        headers = [*TEXT, ("X-A", "b")]
        start_response("200 OK", headers)
        yield b"x"
        headers.append(("X-Late", "\r\n"))

    assert plain.serve(app).ask()["x-a"] == "b"


def test_write_sends_before_the_iterable(exchange) -> None:
    def app(environ, start_response):
        write = start_response("200 OK", TEXT)
        write(b"one")
        write(b"two")
        return [b"three"]

    assert exchange.serve(app).ask().body == b"onetwothree"


def test_write_alone_is_a_response(exchange) -> None:
    def app(environ, start_response):
        write = start_response("200 OK", [*TEXT, ("Content-Length", "6")])
        write(b"one")
        write(b"two")
        return []

    response = exchange.serve(app).ask()
    assert (response.body, response.framing) == (b"onetwo", "length")


def test_what_write_sent_is_at_the_client_when_it_returns_or_soon_after(plain) -> None:
    import threading

    seen = threading.Event()

    def app(environ, start_response):
        write = start_response("200 OK", TEXT)
        write(b"one")
        assert seen.wait(20), "the block was held back"
        write(b"two")
        return []

    plain.serve(app)
    with plain.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        response = client.head()
        assert client.chunk(response) == b"one"
        seen.set()
        while client.chunk(response):
            pass
        assert response.body == b"onetwo"


@pytest.mark.parametrize("block", ["text", 5, None, [b"x"]], ids=repr)
def test_write_takes_only_bytes(plain, block) -> None:
    raised = []

    def app(environ, start_response):
        write = start_response("200 OK", TEXT)
        try:
            write(block)
        except (TypeError, ValueError) as error:
            raised.append(error)
        return [b"ok"]

    assert plain.serve(app).ask().body == b"ok"
    assert len(raised) == 1


def test_write_of_nothing_does_not_send_the_head(exchange) -> None:
    def app(environ, start_response):
        write = start_response("200 OK", TEXT)
        write(b"")
        start_response("500 Oops", TEXT, boom())
        return [b"sorry"]

    assert exchange.serve(app).ask().status == 500


def test_write_beyond_content_length_goes_nowhere(plain) -> None:
    def app(environ, start_response):
        write = start_response("200 OK", [*TEXT, ("Content-Length", "5")])
        try:
            write(b"hello, world")
        except Exception:
            write(b"hello")
        return []

    plain.serve(app)
    with plain.client() as client:
        for _ in range(2):
            assert client.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").body == b"hello"


def test_write_after_the_response_affects_no_other_request(plain) -> None:
    kept = []

    def app(environ, start_response):
        kept.append(start_response("200 OK", [*TEXT, ("Content-Length", "2")]))
        return [b"ok"]

    plain.serve(app)
    with plain.client() as client:
        for _ in range(3):
            assert client.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").body == b"ok"
            try:
                kept[0](b"intruder")
            except Exception as error:
                assert not isinstance(error, SystemError)


def test_an_exception_after_write_breaks_visibly(plain) -> None:
    def app(environ, start_response):
        start_response("200 OK", TEXT)(b"one")
        raise RuntimeError("after write")

    plain.serve(app)
    with pytest.raises(Broken) as broken:
        plain.ask()
    assert 0 not in broken.value.response.chunks
