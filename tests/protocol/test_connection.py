"""Connections: persistence, pipelining, expectations (RFC 9112 section 9, RFC 9110 sections 7.6.1 and 10.1.1)."""

from __future__ import annotations

from harness.cases import Case, case, check, each, ok, over, refused, request, saw, then_refused
from harness.server import Server

GET = b"GET / HTTP/1.1"
OLD = b"GET / HTTP/1.0"


def says(id: str, line: bytes, connection: bytes | None, then: str, rfc: str = "9112 9.3", *more) -> Case:
    fields = [] if connection is None else [b"Connection: " + connection]
    return case(id, rfc, request(line, *fields), ok(then), *more)


PERSISTENCE: list[Case] = [
    says("1.1", GET, None, "open"),
    says("1.1-keep-alive", GET, b"keep-alive", "open"),
    says("1.1-close", GET, b"close", "closed", "9112 9.6"),
    says("1.1-close-in-capitals", GET, b"CLOSE", "closed", "9110 7.6.1"),
    says("1.1-close-mixed", GET, b"cLoSe", "closed", "9110 7.6.1"),
    says("1.1-keep-alive-and-close", GET, b"keep-alive, close", "closed", "9112 9.3"),
    says("1.1-close-and-keep-alive", GET, b"close, keep-alive", "closed", "9112 9.3"),
    says("1.1-close-in-a-second-line", GET, b"keep-alive\r\nConnection: close", "closed", "9110 7.6.1"),
    says("1.1-close-in-the-first-line", GET, b"close\r\nConnection: x", "closed", "9110 7.6.1"),
    says("1.1-close-between-others", GET, b"a,close ,\tb", "closed", "9110 7.6.1"),
    says("1.1-close-after-empty-elements", GET, b", ,close", "closed", "9110 5.6.1"),
    says("1.1-unknown-option", GET, b"foo", "open", "9110 7.6.1"),
    says("1.1-option-that-contains-close", GET, b"closed, unclose, close-x", "open", "9110 7.6.1"),
    says("1.1-empty", GET, b"", "open", "9110 7.6.1"),
    says("1.1-proxy-connection-is-nothing", GET, b"x\r\nProxy-Connection: close", "open", "9112 C.2.2"),
    says("1.1-keep-alive-field-is-nothing", GET, b"x\r\nKeep-Alive: timeout=0, max=0", "open", "9112 C.2.2"),
    says("1.0", OLD, None, "closed"),
    says("1.0-close", OLD, b"close", "closed"),
    says("1.0-keep-alive", OLD, b"keep-alive", "either"),
    says("1.0-keep-alive-in-capitals", OLD, b"Keep-Alive", "either"),
    says("1.0-keep-alive-and-close", OLD, b"keep-alive, close", "closed"),
    says("1.0-unknown-option", OLD, b"foo", "closed"),
    says("1.0-proxy-connection-keep-alive", OLD, b"foo\r\nProxy-Connection: keep-alive", "closed", "9112 C.2.2"),
    case(
        "1.1-post-then-open",
        "9112 9.3",
        request(b"POST / HTTP/1.1", b"Content-Length: 5", body=b"hello"),
        saw(body="hello"),
    ),
    case(
        "1.1-post-with-close",
        "9112 9.6",
        request(b"POST / HTTP/1.1", b"Connection: close", b"Content-Length: 5", body=b"hello"),
        saw("closed", body="hello"),
    ),
    case(
        "1.1-nothing-behind-close-is-answered", "9112 9.6", request(GET, b"Connection: close") + request(), ok("closed")
    ),
    case("half-closed-request-is-answered", "9112 9.6", request(), ok("closed"), half_close=True),
    case(
        "half-closed-post-is-answered",
        "9112 9.6",
        request(b"POST / HTTP/1.1", b"Content-Length: 5", body=b"hello"),
        saw("closed", body="hello"),
        half_close=True,
    ),
    case("half-closed-1.0-request-is-answered", "9112 9.6", request(OLD), ok("closed"), half_close=True),
    case("half-closed-head-is-cut", "9112 9.6", b"GET / HTTP/1.1\r\nHost: a\r\n", refused(), half_close=True),
]

PIPELINING: list[Case] = [
    case(
        "two",
        "9112 9.3.2",
        request(b"GET /1 HTTP/1.1") + request(b"GET /2 HTTP/1.1"),
        each({"PATH_INFO": "/1"}, {"PATH_INFO": "/2"}),
    ),
    case(
        "ten-in-order",
        "9112 9.3.2",
        b"".join(request(b"GET /%d HTTP/1.1" % n) for n in range(10)),
        each(*({"PATH_INFO": f"/{n}"} for n in range(10))),
    ),
    case(
        "post-then-get",
        "9112 9.3.2",
        request(b"POST /1 HTTP/1.1", b"Content-Length: 3", body=b"abc") + request(b"GET /2 HTTP/1.1"),
        each({"PATH_INFO": "/1", "body": "abc"}, {"PATH_INFO": "/2", "body": ""}),
    ),
    case(
        "chunked-then-get",
        "9112 9.3.2",
        request(b"POST /1 HTTP/1.1", b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\n\r\n")
        + request(b"GET /2 HTTP/1.1"),
        each({"body": "abc"}, {"PATH_INFO": "/2"}),
    ),
    case(
        "chunked-with-trailer-then-get",
        "9112 9.3.2",
        request(b"POST /1 HTTP/1.1", b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\nX: y\r\n\r\n")
        + request(b"GET /2 HTTP/1.1"),
        each({"body": "abc"}, {"PATH_INFO": "/2"}),
    ),
    case(
        "head-then-get",
        "9112 9.3.2",
        request(b"HEAD /1 HTTP/1.1") + request(b"GET /2 HTTP/1.1"),
        each({}, {"PATH_INFO": "/2"}),
        methods=("HEAD", "GET"),
    ),
    case(
        "get-then-head-then-get",
        "9112 9.3.2",
        request(b"GET /1 HTTP/1.1") + request(b"HEAD /2 HTTP/1.1") + request(b"GET /3 HTTP/1.1"),
        each({"PATH_INFO": "/1"}, {}, {"PATH_INFO": "/3"}),
        methods=("GET", "HEAD", "GET"),
    ),
    case(
        "empty-line-between",
        "9112 2.2",
        request(b"GET /1 HTTP/1.1") + b"\r\n" + request(b"GET /2 HTTP/1.1"),
        each({"PATH_INFO": "/1"}, {"PATH_INFO": "/2"}),
        why="some old clients send one after a POST body",
    ),
    case(
        "bad-one-behind-a-good-one",
        "9112 9.3.2",
        request(b"GET /1 HTTP/1.1") + b"BAD\r\n\r\n",
        then_refused({"PATH_INFO": "/1"}),
    ),
    case(
        "good-one-behind-a-bad-one-stays-unanswered",
        "9112 9.3.2",
        b"BAD\r\n\r\n" + request(b"GET /2 HTTP/1.1"),
        refused(),
    ),
    case(
        "missing-host-behind-a-good-one",
        "9112 3.2",
        request(b"GET /1 HTTP/1.1") + request(host=None),
        then_refused({"PATH_INFO": "/1"}),
    ),
    case(
        "close-in-the-middle",
        "9112 9.6",
        request(b"GET /1 HTTP/1.1") + request(b"GET /2 HTTP/1.1", b"Connection: close") + request(b"GET /3 HTTP/1.1"),
        each({"PATH_INFO": "/1"}, {"PATH_INFO": "/2"}, then="closed"),
    ),
    case(
        "half-closed-after-three",
        "9112 9.6",
        b"".join(request(b"GET /%d HTTP/1.1" % n) for n in range(3)),
        each(*({"PATH_INFO": f"/{n}"} for n in range(3)), then="closed"),
        half_close=True,
    ),
    case(
        "a-hundred-small-posts",
        "9112 9.3.2",
        b"".join(request(b"POST /%d HTTP/1.1" % n, b"Content-Length: 2", body=b"%02d" % n) for n in range(100)),
        each(*({"PATH_INFO": f"/{n}", "body": f"{n:02}"} for n in range(100))),
    ),
    case(
        "twenty-large-heads",
        "9112 9.3.2",
        b"".join(request(b"GET /%d HTTP/1.1" % n, b"X-Big: " + b"x" * 4000) for n in range(20)),
        each(*({"PATH_INFO": f"/{n}", "HTTP_X_BIG": "x" * 4000} for n in range(20))),
    ),
]

EXPECT: list[Case] = [
    case(
        "with-the-body-already-sent",
        "9110 10.1.1",
        request(b"POST / HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 5", body=b"hello"),
        saw(body="hello"),
    ),
    case(
        "in-capitals",
        "9110 10.1.1",
        request(b"POST / HTTP/1.1", b"Expect: 100-CONTINUE", b"Content-Length: 5", body=b"hello"),
        saw(body="hello"),
    ),
    case(
        "with-chunked",
        "9110 10.1.1",
        request(
            b"POST / HTTP/1.1", b"Expect: 100-continue", b"Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n"
        ),
        saw(body="hello"),
    ),
    case(
        "without-body",
        "9110 10.1.1",
        request(GET, b"Expect: 100-continue"),
        ok(),
        why="a request without content expects nothing",
    ),
    case(
        "in-1.0-is-ignored",
        "9110 10.1.1",
        b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
        saw("closed", body="hello"),
    ),
    case(
        "unknown-expectation",
        "9110 10.1.1",
        request(GET, b"Expect: 200-ok"),
        ok(),
        refused(417),
        why="MAY be refused with 417",
    ),
    case(
        "list-with-unknown",
        "9110 10.1.1",
        request(b"POST / HTTP/1.1", b"Expect: 100-continue, x=y", b"Content-Length: 5", body=b"hello"),
        saw(body="hello"),
        refused(417, 400),
    ),
    case("empty-expectation", "9110 10.1.1", request(GET, b"Expect:"), ok(), refused(417, 400)),
]


@over(PERSISTENCE)
def test_a_connection_persists_as_version_and_options_say(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(PIPELINING)
def test_pipelined_requests_are_answered_in_order(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(EXPECT)
def test_expectations_are_met_or_refused(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


def test_http_1_0_keep_alive_is_answered_with_keep_alive(echo: Server) -> None:
    with echo.client() as client:
        for _ in range(3):
            client.send(request(OLD, b"Connection: keep-alive"))
            response = client.response(version="1.0")
            assert response.connection == {"keep-alive"}, "RFC 9112 section C.2.2"
            assert response.framing == "length"


def test_continue_is_sent_when_the_client_waits_for_it(echo: Server) -> None:
    with echo.client() as client:
        client.send(request(b"POST / HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 5"))
        interim = client.head()
        assert interim.status == 100
        assert interim.fields == []
        client.send(b"hello")
        response = client.response()
        assert response.status == 200
        assert b'"body": "hello"' in response.body


def test_continue_is_sent_once(echo: Server) -> None:
    with echo.client() as client:
        client.send(request(b"POST / HTTP/1.1", b"Expect: 100-continue", b"Transfer-Encoding: chunked"))
        assert client.head().status == 100
        for piece in (b"5\r\nhe", b"llo\r\n", b"0\r\n\r\n"):
            client.send(piece)
        response = client.response()
        assert response.interim == []
        assert b'"body": "hello"' in response.body


def test_a_body_that_is_too_large_is_refused_instead_of_continued() -> None:
    with Server("echo:app", max_body=1000) as server, server.client() as client:
        client.send(request(b"POST / HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 1001"))
        response = client.response()
        assert response.interim == []
        assert response.status == 413
        client.at_end()


def test_no_continue_goes_to_an_http_1_0_client(echo: Server) -> None:
    with echo.client() as client:
        client.send(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        client.send(b"hello")
        response = client.response(version="1.0")
        assert response.interim == []
        assert response.status == 200


def test_no_continue_when_the_head_is_refused(echo: Server) -> None:
    with echo.client() as client:
        client.send(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        response = client.response()
        assert (response.status, response.interim) == (400, [])


def test_a_connection_without_a_request_is_closed_without_a_word(echo: Server) -> None:
    with echo.client() as client:
        client.finish_sending()
        client.at_end(clean=True)
