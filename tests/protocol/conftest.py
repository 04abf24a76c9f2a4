"""Servers of the echo application, for the tests of HTTP over a socket."""

from collections.abc import Iterator

import pytest
from harness.server import Server


@pytest.fixture(scope="module", params=["first", "streamed"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Its body is read before the application runs, and by `--stream-body` while it reads."""
    if request.param == "first":
        yield request.getfixturevalue("echo")
        return
    with Server("stream_app:echo", "--stream-body") as server:
        yield server
