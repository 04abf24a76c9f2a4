"""What a call of an application costs by itself: the floor of what any server spends on a request.

An application asks this of itself in a view, so that the figure is of the same process, interpreter and modules as the
requests that a server passes to it.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication, WSGIEnvironment

PASSES = 5
CALLS = 400


def microseconds(application: WSGIApplication, environ: WSGIEnvironment) -> str:
    """Processor time of a call of the application with the path of the query string, the median of several passes: of
    the call, its blocks and `close()`. `environ`: of the request that asks."""
    # What the framework has added belongs to the request that asks.
    own = {key: value for key, value in environ.items() if key.isupper() and isinstance(value, str)}
    own |= {key: value for key, value in environ.items() if key.startswith("wsgi.")}
    own |= {"PATH_INFO": environ["QUERY_STRING"], "QUERY_STRING": ""}

    def call() -> None:
        result: Iterable[bytes] = application(own | {"wsgi.input": io.BytesIO()}, lambda *_: lambda _: None)
        for _ in result:
            pass
        if close := getattr(result, "close", None):
            close()

    def measure() -> float:
        begun = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        return (time.thread_time_ns() - begun) / CALLS / 1000

    return f"{median(measure() for _ in range(PASSES)):.2f}"
