"""`--stream-body`: the rules of framing are the same for a body that is decoded while the application reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from harness.cases import Case, check, over
from harness.server import Server
from protocol.test_connection import EXPECT, PERSISTENCE, PIPELINING
from protocol.test_framing import CHUNKS, CODING, EXTENSIONS, LENGTH, SMUGGLING, TRAILERS


@pytest.fixture(scope="module")
def streamed() -> Iterator[Server]:
    with Server("stream_app:echo", "--stream-body") as server:
        yield server


FRAMING = {
    "length": LENGTH,
    "coding": CODING,
    "smuggling": SMUGGLING,
    "chunks": CHUNKS,
    "extensions": EXTENSIONS,
    "trailers": TRAILERS,
}


@over([replace(case, id=f"{name}-{case.id}") for name, cases in FRAMING.items() for case in cases])
def test_a_streamed_body_has_the_same_framing(case: Case, way: str, streamed: Server) -> None:
    check(case, way, streamed.address)


@over([*PERSISTENCE, *PIPELINING, *EXPECT])
def test_a_connection_persists_the_same_around_streamed_bodies(case: Case, way: str, streamed: Server) -> None:
    check(case, way, streamed.address)
