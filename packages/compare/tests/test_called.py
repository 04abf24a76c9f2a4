"""What a call of an application costs by itself."""

import time
from collections.abc import Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults

from tailrace_compare.served import called

SPIN = 20_000


def spin() -> None:
    end = time.thread_time_ns() + SPIN
    while time.thread_time_ns() < end:
        pass


class Blocks:
    """An iterable that counts how often it was closed."""

    closed = 0

    def __iter__(self) -> Iterator[bytes]:
        spin()
        yield b"one"

    def close(self) -> None:
        spin()
        type(self).closed += 1


def test_the_call_its_blocks_and_its_close_count_and_nothing_of_the_request_that_asks() -> None:
    seen: list[dict[str, Any]] = []

    def application(environ: dict[str, Any], start_response: Any) -> Blocks:
        seen.append(environ)
        spin()
        start_response("200 OK", [])
        return Blocks()

    environ: dict[str, Any] = {"PATH_INFO": "/called", "QUERY_STRING": "/page", "werkzeug.request": object()}
    setup_testing_defaults(environ)
    assert float(called.microseconds(application, environ)) >= 3 * SPIN / 1000
    assert Blocks.closed == len(seen) == called.PASSES * called.CALLS
    assert {each["PATH_INFO"] for each in seen} == {"/page"}
    assert not any("werkzeug.request" in each for each in seen)
    assert len({id(each["wsgi.input"]) for each in seen[:2]}) == 2
