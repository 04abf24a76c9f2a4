"""`environ["tailrace.delivery"]` and `["tailrace.client_disconnected"]`: asked during a request and later.

Each request is told of itself. The server uses its parts again for the next request, so before each of these there was
another one with other figures, on the same thread.
"""

import queue
import socket
import struct
import threading

import pytest
from server.probes import digest, eventually, request, taken

TEXT = [("Content-Type", "text/plain")]
DEADLINE = 20


def serve_after_a_reset(plain, app, **options):
    """Serves `app` on one thread, whose last request was given up by its client and could be asked about until then."""
    closed = threading.Event()

    def endless(environ, start_response):
        # As a generator it keeps its environ.
        start_response("201 Created", TEXT)
        try:
            while True:
                yield bytes(10_000)
        finally:
            closed.set()

    def either(environ, start_response):
        return (endless if environ["PATH_INFO"] == "/endless" else app)(environ, start_response)

    plain.serve(either, threads=1, **options)
    with plain.client() as client:
        client.send(request("/endless"))
        assert client.head().status == 201
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert closed.wait(DEADLINE)


def test_a_request_whose_block_is_on_its_way_answers_for_itself(plain):
    environs = queue.SimpleQueue()
    written = threading.Event()
    block = bytes(16 << 20)

    def app(environ, start_response):
        write = start_response("200 OK", [*TEXT, ("Content-Length", str(2 + len(block)))])
        write(b"x")
        environs.put(environ)
        write(block)
        written.set()
        return [b"y"]

    # The queue is much smaller than the block, which is not the last.
    serve_after_a_reset(plain, app, client_memory="1MiB")
    with plain.client() as client:
        client.send(request("/"))
        response = client.head()
        environ = environs.get(timeout=DEADLINE)
        delivery, client_disconnected = environ["tailrace.delivery"], environ["tailrace.client_disconnected"]
        eventually(lambda: delivery()["bytes"] > 1, "the second block is on its way")
        told, gone = delivery(), client_disconnected()
        assert (told["status"], told["bytes"]) == (200, 1 + len(block))
        assert gone is False
        assert taken(client, response) == digest(b"x" + block + b"y")
        assert written.wait(DEADLINE)


KEEPING = {
    "popped": lambda environ, name: environ.pop(name),
    "got": lambda environ, name: environ[name],
    "environ": lambda environ, name: lambda: environ[name](),
}


@pytest.mark.parametrize("how", KEEPING)
def test_a_question_that_was_kept_answers_for_its_own_request(plain, how):
    kept = []

    def app(environ, start_response):
        size = int(environ["QUERY_STRING"])
        kept.append([KEEPING[how](environ, f"tailrace.{name}") for name in ("delivery", "client_disconnected")])
        start_response("200 OK", TEXT)
        return [bytes(size)]

    def answers():
        told = [(delivery(), gone()) for delivery, gone in kept]
        return [(record.get("status"), record.get("bytes"), gone) for record, gone in told]

    serve_after_a_reset(plain, app)
    for size in (10, 20, 30):
        assert len(plain.ask(f"/?{size}").body) == size
    expected = [(200, 10, False), (200, 20, False), (200, 30, False)]
    # A response is with its client a moment before its record is.
    eventually(lambda: answers() == expected, "answers of three requests")
