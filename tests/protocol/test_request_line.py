"""The request line: method, target, version, and the bytes around them (RFC 9112 sections 2.2, 2.3 and 3)."""

from __future__ import annotations

import pytest
from harness.cases import Case, case, check, ok, over, refused, request, saw, status
from harness.server import Server

LINE: list[Case] = [
    case("plain-get", "9112 3", request(), saw(REQUEST_METHOD="GET", PATH_INFO="/", SERVER_PROTOCOL="HTTP/1.1")),
    case("post-without-body", "9112 6.3", request(b"POST / HTTP/1.1"), saw(REQUEST_METHOD="POST", body="")),
    case("lower-case-method-is-another-method", "9110 9.1", request(b"get / HTTP/1.1"), saw(REQUEST_METHOD="get")),
    case("unknown-method-reaches-the-application", "9110 9.1", request(b"BREW / HTTP/1.1"), saw(REQUEST_METHOD="BREW")),
    case(
        "method-of-all-token-characters",
        "9110 5.6.2",
        request(b"A!#$%&'*+-.^_`|~09z / HTTP/1.1"),
        saw(REQUEST_METHOD="A!#$%&'*+-.^_`|~09z"),
    ),
    case(
        "delete-with-body",
        "9110 9.3.5",
        request(b"DELETE /x HTTP/1.1", b"Content-Length: 3", body=b"abc"),
        saw(REQUEST_METHOD="DELETE", body="abc"),
    ),
    case(
        "get-with-body",
        "9110 9.3.1",
        request(b"GET /x HTTP/1.1", b"Content-Length: 3", body=b"abc"),
        saw(REQUEST_METHOD="GET", body="abc"),
    ),
    case(
        "trace-is-answered-by-the-application-or-refused",
        "9110 9.3.8",
        request(b"TRACE / HTTP/1.1"),
        ok(),
        refused(400, 405, 501),
    ),
    case("method-with-parenthesis", "9110 5.6.2", request(b"GE(T / HTTP/1.1")),
    case("method-with-colon", "9110 5.6.2", request(b"GET: / HTTP/1.1")),
    case("method-with-nul", "9110 5.6.2", request(b"GE\0T / HTTP/1.1")),
    case("method-with-latin-1", "9110 5.6.2", request(b"GET\xe9 / HTTP/1.1")),
    case("method-with-quote", "9110 5.6.2", request(b'"GET" / HTTP/1.1')),
    case("method-too-long", "9110 9.1", request(b"A" * 5000 + b" / HTTP/1.1"), refused(400, 414, 501)),
    case("no-method", "9112 3", request(b" / HTTP/1.1")),
    case("leading-space", "9112 3", request(b" GET / HTTP/1.1")),
    case("leading-tab", "9112 3", request(b"\tGET / HTTP/1.1")),
    case("two-spaces-before-target", "9112 3", request(b"GET  / HTTP/1.1")),
    case("two-spaces-after-target", "9112 3", request(b"GET /  HTTP/1.1")),
    case("tab-before-target", "9112 3", request(b"GET\t/ HTTP/1.1")),
    case("tab-after-target", "9112 3", request(b"GET /\tHTTP/1.1")),
    case("form-feed-after-target", "9112 3", request(b"GET /\x0cHTTP/1.1")),
    case("space-in-target", "9112 3.2", request(b"GET /a b HTTP/1.1")),
    case("space-after-version", "9112 3", request(b"GET / HTTP/1.1 ")),
    case("words-after-version", "9112 3", request(b"GET / HTTP/1.1 x")),
    case("method-only", "9112 3", request(b"GET")),
    case("method-and-space-only", "9112 3", request(b"GET ")),
    case("target-missing", "9112 3", request(b"GET HTTP/1.1")),
    case("garbage-words", "9112 3", b"hello, is anybody there?\r\n\r\n"),
    case("binary-garbage", "9112 3", bytes(range(128, 256)) + b"\r\n\r\n"),
    case(
        "tls-client-hello", "9112 3", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)) + b"\r\n\r\n"
    ),
    case("socks-handshake", "9112 3", b"\x05\x01\x00\r\n\r\n"),
    case("ssh-banner", "9112 3", b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    case("smtp-greeting", "9112 3", b"EHLO example.org\r\n\r\n"),
]

EMPTY_LINES: list[Case] = [
    case("one-empty-line-before", "9112 2.2", b"\r\n" + request(), ok()),
    case("two-empty-lines-before", "9112 2.2", b"\r\n\r\n" + request(), ok(), refused()),
    case(
        "a-thousand-empty-lines-before",
        "9112 2.2",
        b"\r\n" * 1000 + request(),
        ok(),
        refused(),
        why="at least one should be ignored; more are the server's choice",
    ),
    case("bare-lf-before", "9112 2.2", b"\n" + request(), refused()),
    case("bare-cr-before", "9112 2.2", b"\r" + request(), refused()),
    case("space-and-line-before", "9112 2.2", b" \r\n" + request(), refused()),
    case(
        "bare-lf-after-request-line",
        "9112 2.2",
        b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        refused(),
        why="a recipient MAY accept it; two readers that differ on it are how requests are smuggled",
    ),
    case("bare-lf-everywhere", "9112 2.2", b"GET / HTTP/1.1\nHost: a\n\n", refused()),
    case("bare-cr-after-request-line", "9112 2.2", b"GET / HTTP/1.1\rHost: a\r\n\r\n"),
    case("cr-cr-lf-after-request-line", "9112 2.2", b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n"),
    case("bare-cr-in-target", "9112 2.2", request(b"GET /a\rb HTTP/1.1")),
    case("lf-cr-after-request-line", "9112 2.2", b"GET / HTTP/1.1\n\rHost: a\r\n\r\n"),
]

VERSION: list[Case] = [
    case("http-1.0", "9112 2.3", b"GET / HTTP/1.0\r\n\r\n", saw("closed", SERVER_PROTOCOL="HTTP/1.0")),
    case("http-1.2-is-processed-as-1.1", "9110 2.5", request(b"GET / HTTP/1.2"), ok(), refused(400, 505)),
    case("http-1.9-needs-host-too", "9110 2.5", b"GET / HTTP/1.9\r\n\r\n", refused(400, 505)),
    case("http-2.0", "9110 15.6.6", request(b"GET / HTTP/2.0"), refused(505, 400)),
    case("http-3.0", "9110 15.6.6", request(b"GET / HTTP/3.0"), refused(505, 400)),
    case("http-0.9-named", "9110 15.6.6", request(b"GET / HTTP/0.9"), refused(505, 400)),
    case("http-2-preface", "9113 3.4", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", refused(505, 400)),
    case("http-0.9-simple-request", "9112 2.3", b"GET /\r\n\r\n"),
    case("lower-case-name", "9112 2.3", request(b"GET / http/1.1")),
    case("mixed-case-name", "9112 2.3", request(b"GET / HtTP/1.1")),
    case("two-digit-minor", "9112 2.3", request(b"GET / HTTP/1.10"), refused(400, 505)),
    case("two-digit-major", "9112 2.3", request(b"GET / HTTP/11.1"), refused(400, 505)),
    case("leading-zero", "9112 2.3", request(b"GET / HTTP/01.1"), refused(400, 505)),
    case("no-minor", "9112 2.3", request(b"GET / HTTP/1"), refused(400, 505)),
    case("empty-minor", "9112 2.3", request(b"GET / HTTP/1."), refused(400, 505)),
    case("comma", "9112 2.3", request(b"GET / HTTP/1,1")),
    case("signed", "9112 2.3", request(b"GET / HTTP/+1.1"), refused(400, 505)),
    case("letter", "9112 2.3", request(b"GET / HTTP/1.x"), refused(400, 505)),
    case("other-protocol", "9112 2.3", request(b"GET / RTSP/1.0")),
    case("protocol-prefix", "9112 2.3", request(b"GET / XHTTP/1.1")),
    case("spaces-inside", "9112 2.3", request(b"GET / HTTP /1.1")),
    case("fullwidth-digit", "9112 2.3", request("GET / HTTP/1.\uff11".encode())),
]

TARGET: list[Case] = [
    case(
        "origin-with-query",
        "9112 3.2.1",
        request(b"GET /a/b?c=d&e HTTP/1.1"),
        saw(PATH_INFO="/a/b", QUERY_STRING="c=d&e"),
    ),
    case("empty-query", "9112 3.2.1", request(b"GET /a? HTTP/1.1"), saw(PATH_INFO="/a", QUERY_STRING="")),
    case("second-question-mark", "3986 3.4", request(b"GET /a?b?c HTTP/1.1"), saw(PATH_INFO="/a", QUERY_STRING="b?c")),
    case("query-stays-encoded", "3875 4.1.7", request(b"GET /?a%20b+c%2f HTTP/1.1"), saw(QUERY_STRING="a%20b+c%2f")),
    case("percent-decoded-once", "3875 4.1.5", request(b"GET /a%20b%2525 HTTP/1.1"), saw(PATH_INFO="/a b%25")),
    case("encoded-slash", "3875 4.1.5", request(b"GET /a%2Fb HTTP/1.1"), saw(PATH_INFO="/a/b")),
    case(
        "encoded-utf-8-arrives-as-latin-1",
        "PEP 3333",
        request(b"GET /caf%C3%A9 HTTP/1.1"),
        saw(PATH_INFO="/caf\u00c3\u00a9"),
    ),
    case("encoded-latin-1", "PEP 3333", request(b"GET /%FF HTTP/1.1"), saw(PATH_INFO="/\u00ff")),
    case("lower-case-hex", "3986 2.1", request(b"GET /%c3%a9 HTTP/1.1"), saw(PATH_INFO="/\u00c3\u00a9")),
    case("encoded-question-mark", "3986 3.3", request(b"GET /a%3Fb HTTP/1.1"), saw(PATH_INFO="/a?b", QUERY_STRING="")),
    case("plus-is-a-plus", "3986 3.3", request(b"GET /a+b HTTP/1.1"), saw(PATH_INFO="/a+b")),
    case(
        "broken-percent",
        "3986 2.1",
        request(b"GET /100% HTTP/1.1"),
        saw(PATH_INFO="/100%"),
        refused(),
        why="malformed; literal or refused, never guessed",
    ),
    case("percent-without-hex", "3986 2.1", request(b"GET /%zz HTTP/1.1"), saw(PATH_INFO="/%zz"), refused()),
    case("percent-with-one-digit", "3986 2.1", request(b"GET /%4 HTTP/1.1"), saw(PATH_INFO="/%4"), refused()),
    case("encoded-nul", "3986 7.3", request(b"GET /a%00b HTTP/1.1"), saw(PATH_INFO="/a\0b"), refused()),
    case(
        "encoded-crlf-stays-in-the-path",
        "PEP 3333",
        request(b"GET /a%0d%0ab HTTP/1.1"),
        saw(PATH_INFO="/a\r\nb"),
        refused(),
    ),
    case(
        "dot-segments-are-the-applications",
        "3986 5.2.4",
        request(b"GET /a/../b/./c HTTP/1.1"),
        saw(PATH_INFO="/a/../b/./c"),
        saw(PATH_INFO="/b/c"),
        refused(),
    ),
    case(
        "double-slash",
        "3986 3.3",
        request(b"GET //a//b HTTP/1.1"),
        saw(PATH_INFO="//a//b"),
        why="origin-form: not an authority",
    ),
    case(
        "double-slash-host-like",
        "9112 3.2.1",
        request(b"GET //evil.example/x HTTP/1.1"),
        saw(PATH_INFO="//evil.example/x", HTTP_HOST="test"),
    ),
    case("colon-in-path", "3986 3.3", request(b"GET /a:b@c HTTP/1.1"), saw(PATH_INFO="/a:b@c")),
    case("semicolon-parameters", "3986 3.3", request(b"GET /a;b=c HTTP/1.1"), saw(PATH_INFO="/a;b=c")),
    case(
        "brackets-and-pipes-as-browsers-send-them",
        "3986 2",
        request(b'GET /?a[]=|^{}"<> HTTP/1.1'),
        saw(QUERY_STRING='a[]=|^{}"<>'),
        refused(),
        why="not in the grammar, but in the world",
    ),
    case("raw-utf-8", "3986 2", request("GET /café HTTP/1.1".encode()), saw(PATH_INFO="/caf\u00c3\u00a9"), refused()),
    case("raw-latin-1", "3986 2", request(b"GET /\xe9 HTTP/1.1"), saw(PATH_INFO="/\u00e9"), refused()),
    case("nul", "9112 3.2", request(b"GET /\0 HTTP/1.1")),
    case("delete-character", "9112 3.2", request(b"GET /\x7f HTTP/1.1")),
    case("escape-character", "9112 3.2", request(b"GET /\x1b[0m HTTP/1.1")),
    case("backspace", "9112 3.2", request(b"GET /\x08 HTTP/1.1")),
    case("fragment", "9112 3.2", request(b"GET /a#b HTTP/1.1"), refused(), saw(PATH_INFO="/a"), saw(PATH_INFO="/a#b")),
    case("no-slash", "9112 3.2", request(b"GET index.html HTTP/1.1")),
    case("only-query", "9112 3.2", request(b"GET ?a=b HTTP/1.1")),
    case("backslash", "9112 3.2", request(b"GET \\a HTTP/1.1")),
    case(
        "absolute-form",
        "9112 3.2.2",
        request(b"GET http://other.example/a?b HTTP/1.1"),
        saw(PATH_INFO="/a", QUERY_STRING="b", HTTP_HOST="other.example"),
    ),
    case(
        "absolute-form-replaces-host",
        "9112 3.2.2",
        request(b"GET http://a.example:81/ HTTP/1.1", host=b"Host: b.example"),
        saw(HTTP_HOST="a.example:81"),
    ),
    case(
        "absolute-form-without-path",
        "9112 3.2.2",
        request(b"GET http://a.example HTTP/1.1"),
        saw(PATH_INFO="/", HTTP_HOST="a.example"),
    ),
    case(
        "absolute-form-query-without-path",
        "9112 3.2.2",
        request(b"GET http://a.example?x HTTP/1.1"),
        saw(PATH_INFO="/", QUERY_STRING="x"),
        saw(PATH_INFO="", QUERY_STRING="x"),
        refused(),
    ),
    case(
        "absolute-form-upper-case-scheme",
        "3986 3.1",
        request(b"GET HTTP://a.example/x HTTP/1.1"),
        saw(PATH_INFO="/x", HTTP_HOST="a.example"),
    ),
    case(
        "absolute-form-ipv6",
        "3986 3.2.2",
        request(b"GET http://[::1]:80/x HTTP/1.1"),
        saw(HTTP_HOST="[::1]:80", PATH_INFO="/x"),
    ),
    case(
        "absolute-form-needs-host-too", "9112 3.2.2", request(b"GET http://a.example/ HTTP/1.1", host=None), refused()
    ),
    case("absolute-form-without-authority", "9110 4.2.1", request(b"GET http:///x HTTP/1.1")),
    case("absolute-form-empty-host-with-port", "9110 4.2.1", request(b"GET http://:80/x HTTP/1.1")),
    case("absolute-form-with-userinfo", "9110 4.2.4", request(b"GET http://user:pw@a.example/ HTTP/1.1")),
    case(
        "absolute-form-in-http-1.0",
        "9112 3.2.2",
        b"GET http://a.example/x HTTP/1.0\r\n\r\n",
        saw("closed", PATH_INFO="/x", HTTP_HOST="a.example"),
    ),
    case("absolute-form-other-scheme", "9112 3.2.2", request(b"GET ftp://a.example/x HTTP/1.1"), refused(400, 421)),
    case("absolute-form-file-scheme", "9112 3.2.2", request(b"GET file:///etc/passwd HTTP/1.1"), refused(400, 421)),
    case("absolute-form-one-slash", "3986 3", request(b"GET http:/a.example/ HTTP/1.1")),
    case("options-asterisk", "9112 3.2.4", request(b"OPTIONS * HTTP/1.1"), status(200, 204, then="open")),
    case("get-asterisk", "9112 3.2.4", request(b"GET * HTTP/1.1")),
    case("asterisk-with-path", "9112 3.2.4", request(b"OPTIONS */x HTTP/1.1")),
    case("connect", "9110 9.3.6", request(b"CONNECT a.example:443 HTTP/1.1"), refused(400, 405, 501)),
    case("connect-with-a-path", "9112 3.2.3", request(b"CONNECT / HTTP/1.1"), refused(400, 405, 501)),
    case("authority-form-with-get", "9112 3.2.3", request(b"GET a.example:80 HTTP/1.1")),
]


@over(LINE)
def test_a_request_line_is_method_target_and_version_with_one_space_between(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(EMPTY_LINES)
def test_lines_end_with_carriage_return_and_line_feed(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(VERSION)
def test_only_http_1_is_spoken(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(TARGET)
def test_a_target_has_one_of_four_forms_and_is_decoded_once(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@pytest.mark.parametrize("path", ["/", "/a", "/a/b%20c", "/%C3%A9"])
def test_the_root_path_is_split_off_once(path: str) -> None:
    with Server("echo:app", root_path="/mounted") as server:
        under = server.get(f"/mounted{path}").body
        assert b'"SCRIPT_NAME": "/mounted"' in under
        assert server.get(f"/mounted{path}").body.count(b"/mounted/mounted") == 0
