"""Connections over a socket: persistence, pipelining, expectations (RFC 9112 section 9, RFC 9110 sections 7.6.1 and
10.1.1). framing.rs of crates/http/tests has the grammar of the fields."""

from harness.cases import Case, case, check, each, over, refused, request, saw
from harness.server import Server

GET = b"GET / HTTP/1.1"
OLD = b"GET / HTTP/1.0"


def says(id: str, line: bytes, connection: bytes | None, then: str, rfc: str = "9112 9.3") -> Case:
    fields = [] if connection is None else [b"Connection: " + connection]
    return case(id, rfc, request(line, *fields), saw(then))


PERSISTENCE: list[Case] = [
    says("1.1", GET, None, "open"),
    says("1.1-close", GET, b"keep-alive\r\nConnection: a,CLOSE ,\tb", "closed", "9112 9.6"),
    says("1.1-unknown-options", GET, b"closed, unclose, close-x", "open", "9110 7.6.1"),
    says("1.0", OLD, None, "closed"),
    says("1.0-keep-alive", OLD, b"Keep-Alive", "open"),
    says("1.0-keep-alive-and-close", OLD, b"keep-alive, close", "closed"),
    case(
        "1.1-nothing-behind-close-is-answered",
        "9112 9.6",
        request(GET, b"Connection: close") + request(),
        saw("closed"),
    ),
    case(
        "half-closed-post-is-answered",
        "9112 9.6",
        request(b"POST / HTTP/1.1", b"Content-Length: 5", body=b"hello"),
        saw("closed", body="hello"),
        half_close=True,
    ),
    case("half-closed-head-is-cut", "9112 9.6", b"GET / HTTP/1.1\r\nHost: a\r\n", refused(), half_close=True),
]

PIPELINING: list[Case] = [
    case(
        "one-of-each",
        "9112 9.3.2",
        request(b"POST /1 HTTP/1.1", b"Content-Length: 3", body=b"abc")
        + request(b"POST /2 HTTP/1.1", b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\nX: y\r\n\r\n")
        + b"\r\n"
        + request(b"GET /3 HTTP/1.1"),
        each({"PATH_INFO": "/1", "body": "abc"}, {"PATH_INFO": "/2", "body": "abc"}, {"PATH_INFO": "/3", "body": ""}),
        why="some old clients send an empty line after a body",
    ),
    case(
        "head-between",
        "9112 9.3.2",
        request(b"GET /1 HTTP/1.1") + request(b"HEAD /2 HTTP/1.1") + request(b"GET /3 HTTP/1.1"),
        each({"PATH_INFO": "/1"}, {}, {"PATH_INFO": "/3"}),
        methods=("GET", "HEAD", "GET"),
    ),
    case(
        "bad-one-behind-a-good-one",
        "9112 9.3.2",
        request(b"GET /1 HTTP/1.1") + b"BAD\r\n\r\n",
        refused(behind={"PATH_INFO": "/1"}),
    ),
    case(
        "good-one-behind-a-bad-one-stays-unanswered",
        "9112 9.3.2",
        b"BAD\r\n\r\n" + request(b"GET /2 HTTP/1.1"),
        refused(),
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
        request(b"POST / HTTP/1.1", b"Expect: 100-CONTINUE", b"Content-Length: 5", body=b"hello"),
        saw(body="hello"),
    ),
    case(
        "in-1.0-is-ignored",
        "9110 10.1.1",
        b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
        saw("closed", body="hello"),
    ),
    case("unknown", "9110 10.1.1", request(GET, b"Expect: 200-ok"), refused(417), why="MAY be refused with 417"),
    case("empty", "9110 10.1.1", request(GET, b"Expect:"), saw()),
]


@over(PERSISTENCE)
def test_a_connection_persists_as_version_and_options_say(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)


@over(PIPELINING)
def test_pipelined_requests_are_answered_in_order(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)


@over(EXPECT)
def test_expectations_are_met_or_refused(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)


def test_http_1_0_keep_alive_is_answered_with_keep_alive(echo: Server) -> None:
    with echo.client() as client:
        for _ in range(3):
            response = client.ask(request(OLD, b"Connection: keep-alive"), version="1.0")
            assert response.connection == {"keep-alive"}, "RFC 9112 section C.2.2"
            assert response.framing == "length"


def test_continue_is_sent_once_when_the_client_waits_for_it(echo: Server) -> None:
    with echo.client() as client:
        client.send(request(b"POST / HTTP/1.1", b"Expect: 100-continue", b"Transfer-Encoding: chunked"))
        interim = client.head()
        assert (interim.status, interim.fields) == (100, [])
        for piece in (b"5\r\nhe", b"llo\r\n", b"0\r\n\r\n"):
            client.send(piece)
        response = client.response()
        assert response.interim == []
        assert b'"body": "hello"' in response.body


def test_a_body_that_is_too_large_is_refused_instead_of_continued() -> None:
    with Server("echo:app", max_body=1000) as server, server.client() as client:
        response = client.ask(request(b"POST / HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 1001"))
        assert response.interim == []
        assert response.status == 413
        client.at_end()


def test_no_continue_goes_to_an_http_1_0_client(echo: Server) -> None:
    with echo.client() as client:
        client.send(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        response = client.ask(b"hello", version="1.0")
        assert response.interim == []
        assert response.status == 200


def test_no_continue_when_the_head_is_refused(echo: Server) -> None:
    with echo.client() as client:
        response = client.ask(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert (response.status, response.interim) == (400, [])


def test_a_connection_without_a_request_is_closed_without_a_word(echo: Server) -> None:
    with echo.client() as client:
        client.finish_sending()
        client.at_end(clean=True)
