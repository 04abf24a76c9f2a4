"""`tailrace_tools.timing`: the same figures under any server."""

import logging
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from tailrace_tools.timing import timed

import tailrace


def run(application):
    environ = {}
    setup_testing_defaults(environ)
    started = []
    iterable = application(environ, lambda *arguments: started.append(arguments))
    try:
        return b"".join(iterable), started
    finally:
        iterable.close()


def test_a_request_is_told_once_with_its_blocks_and_its_status():
    told = []

    def application(environ, start_response):
        start_response("201 Created", [])
        yield b""
        yield b"abc"
        yield b"de"

    body, started = run(timed(application, tell=told.append))
    assert body == b"abcde"
    assert started == [("201 Created", [])]
    (timing,) = told
    assert (timing.method, timing.path, timing.status) == ("GET", "/", "201 Created")
    assert (timing.blocks, timing.bytes) == (2, 5)
    assert 0 <= timing.first_block_ms <= timing.app_ms


def test_close_of_the_application_is_called_and_is_part_of_the_time():
    closed = []

    class Body:
        def __iter__(self):
            return iter([b"x"])

        def close(self):
            closed.append(not told)

    told = []
    run(timed(lambda environ, start_response: start_response("200 OK", []) or Body(), tell=told.append))
    assert closed == [True]
    assert len(told) == 1


def test_an_exception_is_told_and_raised():
    told = []

    def application(environ, start_response):
        raise LookupError("no")

    with pytest.raises(LookupError):
        run(timed(application, tell=told.append))
    assert told[0].status == ""


def test_a_length_is_passed_on():
    measured = timed(lambda environ, start_response: start_response("200 OK", []) or [b"abc"], tell=lambda timing: None)
    iterable = measured({}, lambda *arguments: None)
    assert len(iterable) == 1
    iterable.close()
    generator = timed(lambda environ, start_response: (block for block in [b"a"]), tell=lambda timing: None)
    iterable = generator({}, lambda *arguments: None)
    assert not hasattr(iterable, "__len__")
    iterable.close()


def test_a_line_is_logged_for_each_request_of_a_real_server(caplog):
    def application(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"pong"]

    import urllib.request

    with caplog.at_level(logging.INFO, "tailrace.timing"):
        with tailrace.serve_in_thread(timed(validator(application))) as server:
            with urllib.request.urlopen(server.url + "/ping") as answer:
                assert answer.read() == b"pong"
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tailrace.timing"]
    assert line.startswith("GET /ping 200 app_ms=")
    assert line.endswith("blocks=1 bytes=4")
