"""A small response is one TCP segment, by the count of the kernel of the client."""

import socket
import struct

import pytest
from harness.server import Server, shared
from server.probes import pattern, request

# struct tcp_info of linux/tcp.h: tcpi_segs_in, tcpi_data_segs_in.
SEGS_IN, DATA_SEGS_IN = 140, 152
server = shared(Server, "srv_shapes:app")


def segments(client, which=DATA_SEGS_IN):
    info = client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return struct.unpack_from("I", info, which)[0]


ONE_SEGMENT = [
    "/list?size=900",
    "/list?size=9000&block=300",
    "/bytes?size=500",
    "/generator?size=4&length=4",
    "/generator?size=9000&block=9000&length=9000",
    "/file?size=500",
    "/",
]


@pytest.mark.parametrize("target", ONE_SEGMENT)
def test_head_and_body_share_a_segment(server, target):
    with server.client() as client:
        for count in range(1, 6):
            client.ask(request(target))
            assert segments(client) == count


@pytest.mark.parametrize("target", ["/list?size=900", "/list?size=9000&block=3000", "/bytes?size=500", "/"])
def test_the_end_of_the_connection_shares_the_segment_of_the_response(server, target):
    def count(field):
        with server.client() as client:
            client.ask(request(target, field))
            if "close" in field:
                client.at_end(clean=True)
            return segments(client, SEGS_IN)

    # The least: an acknowledgement is a segment of its own where the response is late.
    kept, closed = (min(count(f"Connection: {word}") for _ in range(5)) for word in ["keep-alive", "close"])
    assert closed <= kept


def test_an_error_is_one_segment(server):
    with server.client() as client:
        assert client.ask(b"GET / HTTP/1.1\r\n\r\n").status == 400
        assert segments(client) == 1


def test_the_first_block_of_a_generator_leaves_with_the_head(server):
    # Whether a second block follows is not known when the first leaves: the end is a segment of its own.
    with server.client() as client:
        assert client.ask(request("/generator?size=700")).body == pattern(700)
        assert segments(client) == 2


def test_pipelined_requests_are_answered_in_a_segment_each_at_most(server):
    counts = [21]
    # On a busy machine, the kernel may retransmit a segment whose acknowledgment is late.
    while min(counts) > 20 and len(counts) < 20:
        with server.client() as client:
            client.send(request("/list?size=200") * 20)
            for _ in range(20):
                assert client.response().body == pattern(200)
            counts.append(segments(client))
    assert min(counts) <= 20, counts
