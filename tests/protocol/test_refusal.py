"""Refusals: the page itself, limits, and that a client which is still sending can read it (RFC 9110 section 15, RFC 9112 section 9.6)."""

import socket
import threading
from contextlib import ExitStack

import pytest
from harness.cases import Case, case, check, over, refused, request, saw
from harness.server import Server, shared
from harness.wire import Client

GET = b"GET / HTTP/1.1"
POST = b"POST / HTTP/1.1"

DEFAULTS: list[Case] = [
    case(
        "request-line-of-8000",
        "9112 3",
        request(b"GET /" + b"a" * 7980 + b" HTTP/1.1"),
        saw(),
        why="8000 octets at least should be taken",
    ),
    case("target-without-end", "9110 15.5.15", b"GET /" + b"a" * 1_000_000, refused(414)),
    case("field-without-end", "6585 5", b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"b" * 1_000_000, refused(431)),
    case("ten-thousand-fields", "6585 5", request(GET, *(b"X-%d: y" % n for n in range(10_000))), refused(431)),
]

LIMITED: list[Case] = [
    case("request-line-at-the-limit", "9110 15.5.15", request(b"GET /" + b"a" * 86 + b" HTTP/1.1"), saw()),
    case("request-line-beyond", "9110 15.5.15", request(b"GET /" + b"a" * 87 + b" HTTP/1.1"), refused(414)),
    case("128-fields", "6585 5", request(GET, *[b"A:"] * 127), saw()),
    case("129-fields", "6585 5", request(GET, *[b"A:"] * 128), refused(431)),
    case("head-beyond", "6585 5", request(GET, b"X-A: " + b"b" * 1000), refused(431)),
    case("body-at-the-limit", "9110 15.5.14", request(POST, b"Content-Length: 1000", body=b"x" * 1000), saw()),
    case("body-beyond", "9110 15.5.14", request(POST, b"Content-Length: 1001", body=b"x" * 1001), refused(413)),
    case(
        "chunks-beyond",
        "9110 15.5.14",
        request(POST, b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * 1001 + b"0\r\n\r\n"),
        refused(413),
    ),
]


LIMITS = {"request_line_limit": 100, "header_bytes_limit": 1000, "max_body": 1000}
limited = shared(Server, "echo:app", **LIMITS)
impatient = shared(Server, "echo:app", **LIMITS, header_timeout=1, body_timeout=1)


@over(DEFAULTS)
def test_a_request_has_limits_by_default(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(LIMITED)
def test_limits_are_those_of_the_options(case: Case, way: str, limited: Server) -> None:
    check(case, way, limited.address)


PROVOCATIONS = {
    "line": b"GET <script>alert(1)</script> HTTP/1.1\r\nHost: a\r\n\r\n",
    "method": b"<script>alert(1)</script> / HTTP/1.1\r\nHost: a\r\n\r\n",
    "version": b"GET / <script>alert(1)</script>\r\nHost: a\r\n\r\n",
    "host": b"GET / HTTP/1.1\r\nHost: <script>alert(1)</script>\r\n\r\n",
    "field-name": b"GET / HTTP/1.1\r\nHost: a\r\n<script>alert(1)</script>: x\r\n\r\n",
    "length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: <script>alert(1)</script>\r\n\r\n",
    "coding": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: <script>alert(1)</script>\r\n\r\n",
    "expectation": b"POST / HTTP/1.1\r\nHost: a\r\nExpect: <script>alert(1)</script>\r\nContent-Length: x\r\n\r\n",
    "chunk": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n<script>alert(1)</script>\r\n",
}


@pytest.mark.parametrize("wire", PROVOCATIONS.values(), ids=PROVOCATIONS.keys())
def test_an_error_page_is_complete_and_echoes_nothing(echo: Server, wire: bytes) -> None:
    with echo.client() as client:
        response = client.ask(wire)
        assert 400 <= response.status < 600
        assert response.framing == "length"
        assert 0 < len(response.body) < 1000
        assert response.reason
        assert response["content-type"].startswith("text/")
        assert "date" in response
        assert response.connection == {"close"}
        assert b"script" not in response.body
        assert b"alert" not in response.body
        assert not any("script" in value for _, value in response.fields)
        client.at_end(clean=True)


def test_a_refusal_to_head_has_no_body(echo: Server) -> None:
    with echo.client() as client:
        assert client.ask(b"HEAD / HTTP/1.1\r\n\r\n", "HEAD").status == 400
        client.at_end()


def upload(client: Client, amount: int) -> threading.Thread:
    """Goes on sending from a thread, as a client does that reads only when it has sent all."""

    def send() -> None:
        for _ in range(amount >> 16):
            if not client.send(b"x" * (1 << 16)):
                return

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (request(POST, b"Content-Length: 20000000"), 413),
        (request(POST, b"Transfer-Encoding: chunked", body=b"1312d00\r\n"), 413),
        (b"what is this\r\n", 400),
    ],
    ids=["length", "chunk", "garbage"],
)
def test_a_client_that_still_sends_can_read_the_refusal(limited: Server, head: bytes, status: int) -> None:
    # RFC 9112 section 9.6: closing at once would reset the connection and take the response with it.
    with limited.client() as client:
        client.send(head)
        thread = upload(client, 4 << 20)
        thread.join()
        response = client.response()
        assert response.status == status
        assert response.framing == "length"


def test_a_refused_client_that_falls_silent_is_closed(impatient: Server) -> None:
    with impatient.client() as client:
        assert client.ask(request(POST, b"Content-Length: 999999999999", body=b"x")).status == 413
        client.at_end(clean=True)


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ", request(POST, b"Content-Length: 100", body=b"x")],
    ids=["head", "body"],
)
def test_a_slow_request_is_answered_408(impatient: Server, sent: bytes) -> None:
    with impatient.client() as client:
        assert client.ask(sent).status == 408
        client.at_end()


def test_a_head_that_trickles_does_not_move_its_deadline(impatient: Server) -> None:
    # One byte now and then must not keep a connection for ever: the time counts from the first byte.
    with impatient.client(deadline=30) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ")
        client.sock.settimeout(0.05)
        for _ in range(400):
            client.send(b"b")
            try:
                if client.buffer or not client._more() or client.buffer:
                    break
            except TimeoutError:
                continue
        client.sock.settimeout(10)
        assert client.response().status == 408


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX-Half", b": b\r\n\r\n"),
        (request(POST, b"Content-Length: 10", body=b"01234"), b"56789"),
    ],
    ids=["head", "body"],
)
def test_half_sent_requests_do_not_stop_the_service(echo: Server, first: bytes, rest: bytes) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(echo.client()) for _ in range(160)]
        for client in clients:
            client.send(first)
        assert echo.get("/meanwhile").status == 200
        for client in clients:
            assert client.ask(rest)["x-path"] == "/"


@pytest.mark.parametrize(
    "wire",
    [b"", b"G", b"GET / HTTP/1.1\r\n", request(), request(POST, b"Content-Length: 10", body=b"x"), request() + b"GET"],
    ids=["nothing", "one-byte", "half-a-head", "whole-request", "half-a-body", "one-and-a-bit"],
)
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_disconnects_affects_no_other_client(echo: Server, wire: bytes, how: str) -> None:
    for _ in range(20):
        client = echo.client()
        client.send(wire)
        if how == "reset":
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    assert echo.get("/after").status == 200


def test_a_refusal_is_logged_once_with_the_option_that_allows_it() -> None:
    wanted = {
        request(POST, b"Content-Length: 1001"): (413, "--max-body"),
        request(b"GET /" + b"a" * 87 + b" HTTP/1.1"): (414, "--request-line-limit"),
        request(GET, b"X-A: " + b"b" * 1000): (431, "--header-bytes-limit"),
        request(b"GET /\0 HTTP/1.1"): (400, ""),
    }
    with Server("echo:app", "--log-level", "debug", **LIMITS) as server:
        for sent, (status, option) in wanted.items():
            for _ in range(3):
                with server.client() as client:
                    assert client.ask(sent).status == status
            assert server.logged(f": {status} ")
            [line] = [line for line in server.log.splitlines() if f": {status} " in line]
            level = "WARNING: rejected a request from 127.0.0.1:" if option else "DEBUG: rejected a request from"
            assert level in line
            assert (f"To allow such requests, raise {option}. " in line) == bool(option)
