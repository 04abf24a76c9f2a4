"""The request line over a socket (RFC 9112 sections 2.2, 2.3 and 3). head.rs and target.rs of crates/http/tests have its
grammar."""

import json
from urllib.parse import unquote

from harness.cases import Case, case, check, over, refused, request, saw
from harness.server import Server

LINE: list[Case] = [
    case("plain-get", "9112 3", request(), saw(REQUEST_METHOD="GET", PATH_INFO="/", SERVER_PROTOCOL="HTTP/1.1")),
    case(
        "method-of-all-token-characters",
        "9110 5.6.2",
        request(b"a!#$%&'*+-.^_`|~09Z / HTTP/1.1"),
        saw(REQUEST_METHOD="a!#$%&'*+-.^_`|~09Z"),
    ),
    case("trace", "9110 9.3.8", request(b"TRACE / HTTP/1.1"), saw(REQUEST_METHOD="TRACE")),
    case("connect", "9110 9.3.6", request(b"CONNECT a.example:443 HTTP/1.1"), refused(501)),
    case("two-spaces-before-target", "9112 3", request(b"GET  / HTTP/1.1"), refused()),
    case("binary-garbage", "9112 3", bytes(range(128, 256)) + b"\r\n\r\n", refused()),
]

LINE_ENDS: list[Case] = [
    case("four-empty-lines-before", "9112 2.2", b"\r\n" * 4 + request(), saw()),
    case("five-empty-lines-before", "9112 2.2", b"\r\n" * 5 + request(), refused()),
    case("bare-lf", "9112 2.2", b"GET / HTTP/1.1\nHost: a\r\n\r\n", refused()),
    case("bare-cr", "9112 2.2", b"GET / HTTP/1.1\rHost: a\r\n\r\n", refused()),
]

VERSION: list[Case] = [
    case("http-1.0", "9112 2.3", b"GET / HTTP/1.0\r\n\r\n", saw("closed", SERVER_PROTOCOL="HTTP/1.0")),
    case("http-1.2", "9110 2.5", request(b"GET / HTTP/1.2"), saw(SERVER_PROTOCOL="HTTP/1.1")),
    case("http-2.0", "9110 15.6.6", request(b"GET / HTTP/2.0"), refused(505)),
    case("http-2-preface", "9113 3.4", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", refused(505)),
    case("other-protocol", "9112 2.3", request(b"GET / RTSP/1.0"), refused()),
]

TARGET: list[Case] = [
    case(
        "origin-with-query",
        "9112 3.2.1",
        request(b'GET //a.example/b:c;d=e+f?g?h=%20%2f&i[]=|^{}"<> HTTP/1.1'),
        saw(PATH_INFO="//a.example/b:c;d=e+f", QUERY_STRING='g?h=%20%2f&i[]=|^{}"<>', HTTP_HOST="test"),
    ),
    case("percent-decoded-once", "3875 4.1.5", request(b"GET /a%20b%2525%2F%3F HTTP/1.1"), saw(PATH_INFO="/a b%25/?")),
    case(
        "encoded-octets-arrive-as-latin-1",
        "PEP 3333",
        request(b"GET /caf%C3%a9%FF%00%0d%0a HTTP/1.1"),
        saw(PATH_INFO="/caf\u00c3\u00a9\u00ff\0\r\n"),
    ),
    case(
        "malformed-percent-stays",
        "3986 2.1",
        request(b"GET /%zz%4/100% HTTP/1.1"),
        saw(PATH_INFO="/%zz%4/100%"),
        why="literal, never guessed",
    ),
    case(
        "dot-segments-are-the-applications",
        "3986 5.2.4",
        request(b"GET /a/../b/./c HTTP/1.1"),
        saw(PATH_INFO="/a/../b/./c"),
    ),
    case("plus-is-no-space", "3875 4.1.5", request(b"GET /a+b? HTTP/1.1"), saw(PATH_INFO="/a+b", QUERY_STRING="")),
    case("raw-octet", "3986 2", request("GET /café HTTP/1.1".encode()), refused()),
    case("fragment", "9112 3.2", request(b"GET /a#b HTTP/1.1"), refused()),
    case("no-slash", "9112 3.2", request(b"GET index.html HTTP/1.1"), refused()),
    case(
        "absolute-form-replaces-host",
        "9112 3.2.2",
        request(b"GET HTTP://a.example:81/x?y HTTP/1.1", host=b"Host: b.example"),
        saw(PATH_INFO="/x", QUERY_STRING="y", HTTP_HOST="a.example:81"),
    ),
    case(
        "absolute-form-without-path",
        "9112 3.2.2",
        request(b"GET http://[::1]?x HTTP/1.1"),
        saw(PATH_INFO="/", QUERY_STRING="x", HTTP_HOST="[::1]"),
    ),
    case("absolute-form-other-scheme", "9112 3.2.2", request(b"GET ftp://a.example/x HTTP/1.1"), refused()),
    case("options-asterisk", "9112 3.2.4", request(b"OPTIONS * HTTP/1.1"), saw(PATH_INFO="", RAW_URI="*")),
    case("get-asterisk", "9112 3.2.4", request(b"GET * HTTP/1.1"), refused()),
]


@over(LINE)
def test_a_request_line_is_method_target_and_version_with_one_space_between(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(LINE_ENDS)
def test_lines_end_with_carriage_return_and_line_feed(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(VERSION)
def test_only_http_1_is_spoken(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(TARGET)
def test_a_target_has_one_of_four_forms_and_is_decoded_once(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


def test_the_root_path_is_split_off_once() -> None:
    with Server("echo:app", root_path="/mounted") as server:
        for path in ("/", "/a", "/a/b%20c", "/mounted/%C3%A9"):
            under = json.loads(server.get(f"/mounted{path}").body)
            assert under["SCRIPT_NAME"] == "/mounted"
            assert under["PATH_INFO"] == unquote(path, "latin-1")
