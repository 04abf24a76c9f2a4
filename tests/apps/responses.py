"""Every response that an application may give, and some that it must not; the path names it."""

import sys
import threading

TEXT = [("Content-Type", "text/plain")]


def app(environ, start_response):
    name = environ["PATH_INFO"].strip("/").replace("-", "_")
    return globals()["answer_" + name](environ, start_response)


def answer_(environ, start_response):
    start_response("200 OK", TEXT)
    return [b"hello"]


def answer_status(environ, start_response):
    start_response(environ["HTTP_X_STATUS"], TEXT)
    return [b"body"]


def answer_field(environ, start_response):
    name = environ["HTTP_X_NAME"].encode("latin-1").decode("unicode_escape")
    value = environ["HTTP_X_VALUE"].encode("latin-1").decode("unicode_escape")
    start_response("200 OK", [*TEXT, (name, value)])
    return [b"body"]


def answer_twice_field(environ, start_response):
    start_response("200 OK", [*TEXT, ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("X-Order", "1"), ("X-Order", "2")])
    return [b"body"]


def answer_list(environ, start_response):
    start_response("200 OK", TEXT)
    return [b"one", b"", b"two", b"three"]


def answer_tuple(environ, start_response):
    start_response("200 OK", TEXT)
    return (b"one", b"two")


def answer_empty_list(environ, start_response):
    start_response("200 OK", TEXT)
    return []


def answer_generator(environ, start_response):
    start_response("200 OK", TEXT)
    return (block for block in (b"one", b"", b"two", b"three"))


def answer_empty_generator(environ, start_response):
    start_response("200 OK", TEXT)
    return iter(())


def answer_empty_blocks(environ, start_response):
    start_response("200 OK", TEXT)
    return iter((b"", b"", b""))


def answer_lengthed_generator(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "11")])
    return (block for block in (b"one", b"two", b"three"))


def answer_short(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "20")])
    return (block for block in (b"one", b"two"))


def answer_short_list(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "20")])
    return [b"one"]


def answer_empty_but_promised(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "20")])
    return []


def answer_long(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "5")])
    return (block for block in (b"one", b"two", b"three"))


def answer_long_list(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "5")])
    return [b"onetwothree"]


def answer_zero_but_body(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "0")])
    return [b"hello"]


def answer_bad_length(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", environ["HTTP_X_LENGTH"])])
    return [b"hello"]


def answer_two_lengths(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "5"), ("Content-Length", environ["HTTP_X_LENGTH"])])
    return [b"hello"]


def answer_crash_before(environ, start_response):
    raise RuntimeError("<b>secret</b> before the head")


def answer_crash_after_start(environ, start_response):
    start_response("200 OK", [*TEXT, ("X-Lost", "yes")])
    raise RuntimeError("after start_response, before the head is sent")


def answer_crash_in_first_block(environ, start_response):
    start_response("200 OK", TEXT)
    raise RuntimeError("before the first block")
    yield b"never"


def answer_crash_in_body(environ, start_response):
    start_response("200 OK", TEXT)
    yield b"one"
    raise RuntimeError("in the middle")


def answer_crash_in_lengthed_body(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "20")])
    yield b"one"
    raise RuntimeError("in the middle")


def answer_crash_after_complete(environ, start_response):
    start_response("200 OK", [*TEXT, ("Content-Length", "3")])
    yield b"one"
    raise RuntimeError("after the last byte")


def answer_crash_in_close(environ, start_response):
    class Crashing:
        def __iter__(self):
            yield b"hello"

        def close(self):
            raise RuntimeError("in close")

    start_response("200 OK", TEXT)
    return Crashing()


def answer_exit(environ, start_response):
    sys.exit(3)


def answer_exit_in_body(environ, start_response):
    start_response("200 OK", TEXT)
    yield b"one"
    sys.exit(3)


def answer_keyboard_interrupt(environ, start_response):
    raise KeyboardInterrupt


def answer_no_start(environ, start_response):
    return [b"hello"]


def answer_big(environ, start_response):
    start_response("200 OK", TEXT)
    return [b"x" * 5_000_000]


def answer_late(environ, start_response):
    def blocks():
        start_response("200 OK", TEXT)
        yield b"late"

    return blocks()


def answer_thread(environ, start_response):
    start_response("200 OK", TEXT)
    return [threading.current_thread().name.encode()]


def answer_body_ignored(environ, start_response):
    start_response("200 OK", TEXT)
    return [b"ignored"]


def answer_body_half_read(environ, start_response):
    environ["wsgi.input"].read(3)
    start_response("200 OK", TEXT)
    return [b"half"]
