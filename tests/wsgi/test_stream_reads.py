"""`--stream-body`: any sequence of reads returns the same as from a BytesIO, however the body is divided."""

import io

import pytest
from harness.uploads import FAMILIES, FRAMINGS, PONG, chunk, head, streaming
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

READS = ["read", "read1", "readline", "readinto", "readinto1", "next", "readlines"]
BODIES = st.binary(max_size=400) | st.lists(st.sampled_from([b"a", b"bcd", b"\n"]), max_size=200).map(b"".join)
PROGRAMS = st.lists(st.tuples(st.sampled_from(READS), st.integers(0, 120)), max_size=12)


def perform(stream, program):
    """What each read gave, and at last all that was left; of partial reads, the bytes they gave."""
    gave = []
    for what, size in program:
        if what in ("readinto", "readinto1"):
            buffer = bytearray(size)
            gave.append(bytes(buffer[: getattr(stream, what)(buffer)]))
        elif what == "next":
            gave.append(next(stream, b""))
        elif what == "readlines":
            # For io.IOBase a hint of 0 means all lines, which would end every program.
            gave.append(stream.readlines(size + 1))
        else:
            gave.append(getattr(stream, what)(size))
    return [*gave, stream.read(), stream.read(), stream.read1(1)]


def compare(body, program, gave):
    """Each result in turn against a BytesIO at the same place."""
    model = io.BytesIO(body)
    for (what, size), got in zip(program, gave[: len(program)], strict=True):
        if what in ("read1", "readinto1"):
            assert len(got) <= size
            assert got or size == 0 or model.tell() == len(body), f"{what}({size}) gave nothing before the end"
            assert got == model.read(len(got))
        elif what in ("read", "readinto"):
            assert got == model.read(size), what
        elif what == "next":
            assert got == next(model, b"")
        else:
            assert got == getattr(model, what)(size + 1 if what == "readlines" else size), what
    assert gave[len(program) :] == [model.read(), b"", b""]


def cut(data, cuts):
    places = sorted({place % (len(data) + 1) for place in cuts})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True) if end > start]


@pytest.fixture(scope="module")
def programmed():
    """A server whose application runs `program` of the test and leaves what it gave in `gave`."""
    shared = {}

    def app(environ, start_response):
        if environ["PATH_INFO"] != "/pong":
            try:
                shared["gave"] = perform(environ["wsgi.input"], shared["program"])
            except Exception as error:
                shared["gave"] = error
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"pong"]

    with streaming(app) as tcp, streaming(app, "unix") as unix:
        shared.update(tcp=tcp, unix=unix)
        yield shared


@FAMILIES
@FRAMINGS
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    body=BODIES,
    program=PROGRAMS,
    chunks=st.lists(st.integers(1, 100), min_size=1, max_size=10),
    cuts=st.lists(st.tuples(st.integers(0, 2000), st.booleans()), max_size=12),
)
def test_any_reads_of_any_pieces_give_what_a_file_gives(programmed, family, framing, body, program, chunks, cuts):
    programmed["program"] = program
    if framing == "length":
        sent = head(length=len(body)) + body
    else:
        rest, sent = body, head()
        while rest:
            size = chunks[len(rest) % len(chunks)]
            sent, rest = sent + chunk(rest[:size]), rest[size:]
        sent += b"0\r\n\r\n"
    pieces = cut(sent + PONG, [place for place, _ in cuts])
    pauses = [pause for _, pause in cuts] + [False]
    server = programmed[family]
    with server.client() as client:
        for piece, pause in zip(pieces, pauses, strict=False):
            client.send(piece)
            if pause:
                server.pong()
        assert client.response().status == 200
        # The next request begins where the body ends.
        assert client.response().body == b"pong"
    if isinstance(programmed["gave"], Exception):
        raise programmed["gave"]
    compare(body, program, programmed["gave"])
