"""Field lines: their syntax, and how they reach the application (RFC 9112 section 5, RFC 9110 section 5)."""

from __future__ import annotations

from harness.cases import Case, case, check, over, refused, request, saw
from harness.server import Server

GET = b"GET / HTTP/1.1"


def line(id: str, rfc: str, text: bytes, *outcomes, why: str = "") -> Case:
    return case(id, rfc, request(GET, text), *outcomes, why=why)


SYNTAX: list[Case] = [
    line("name-and-value", "9112 5", b"X-A: b", saw(HTTP_X_A="b")),
    line("no-space-after-colon", "9112 5", b"X-A:b", saw(HTTP_X_A="b")),
    line("whitespace-around-value", "9112 5.1", b"X-A: \t b \t ", saw(HTTP_X_A="b")),
    line("empty-value", "9110 5.5", b"X-A:", saw(HTTP_X_A="")),
    line("blank-value", "9110 5.5", b"X-A: \t ", saw(HTTP_X_A="")),
    line("colons-in-value", "9110 5.5", b"X-A: b:c:d", saw(HTTP_X_A="b:c:d")),
    line("inner-whitespace-kept", "9110 5.5", b"X-A: b  \t c", saw(HTTP_X_A="b  \t c")),
    line("latin-1-value", "9110 5.5", b"X-A: caf\xe9", saw(HTTP_X_A="caf\u00e9")),
    line("utf-8-value-as-latin-1", "PEP 3333", "X-A: é".encode(), saw(HTTP_X_A="\u00c3\u00a9")),
    line("all-token-characters", "9110 5.1", b"!#$%&'*+-.^`|~aZ0: x", saw()),
    line("numeric-name", "9110 5.1", b"123: x", saw(HTTP_123="x")),
    line("long-name", "9110 5.1", b"X-" + b"a" * 200 + b": x", saw(**{"HTTP_X_" + "A" * 200: "x"})),
    line("long-value", "9110 5.5", b"X-A: " + b"b" * 4000, saw(HTTP_X_A="b" * 4000)),
    line("space-before-colon", "9112 5.1", b"X-A : b", refused()),
    line("tab-before-colon", "9112 5.1", b"X-A\t: b", refused()),
    line("space-inside-name", "9112 5.1", b"X A: b", refused()),
    line("space-before-name", "9112 2.2", b" X-A: b", refused()),
    line("no-colon", "9112 5", b"X-A", refused()),
    line("no-name", "9112 5", b": b", refused()),
    line("separator-in-name", "9110 5.1", b"X@A: b", refused()),
    line("slash-in-name", "9110 5.1", b"X/A: b", refused()),
    line("parentheses-in-name", "9110 5.1", b"X(A): b", refused()),
    line("quotes-in-name", "9110 5.1", b'"X": b', refused()),
    line("brackets-in-name", "9110 5.1", b"X[A]: b", refused()),
    line("latin-1-in-name", "9110 5.1", b"X\xe9: b", refused()),
    line("nul-in-name", "9110 5.1", b"X\0A: b", refused()),
    line("nul-in-value", "9110 5.5", b"X-A: b\0c", refused()),
    line("bare-cr-in-value", "9112 2.2", b"X-A: b\rc", refused()),
    line("bare-lf-ends-line", "9112 2.2", b"X-A: b\nX-B: c", refused()),
    line("cr-cr-lf", "9112 2.2", b"X-A: b\r", refused()),
    line("lf-cr", "9112 2.2", b"X-A: b\n\rX-B: c", refused()),
    line("vertical-tab-in-value", "9110 5.5", b"X-A: b\x0bc", refused()),
    line("form-feed-in-value", "9110 5.5", b"X-A: b\x0cc", refused()),
    line("delete-in-value", "9110 5.5", b"X-A: b\x7fc", refused()),
    line("escape-in-value", "9110 5.5", b"X-A: \x1b[31m", refused()),
    line("backspace-in-value", "9110 5.5", b"X-A: a\x08", refused()),
    line("unit-separator-in-value", "9110 5.5", b"X-A: a\x1f", refused()),
    line("obs-fold-space", "9112 5.2", b"X-A: b\r\n c", refused(), why="400 or a space; we take the first"),
    line("obs-fold-tab", "9112 5.2", b"X-A: b\r\n\tc", refused()),
    line("obs-fold-empty", "9112 5.2", b"X-A: b\r\n ", refused()),
    line("obs-fold-of-a-field-line", "9112 5.2", b"X-A: b\r\n Transfer-Encoding: chunked", refused()),
    case("whitespace-line-after-request-line", "9112 2.2", b"GET / HTTP/1.1\r\n \r\nHost: a\r\n\r\n"),
    case("whitespace-before-first-field", "9112 2.2", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    case("bare-lf-ends-head", "9112 2.2", b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
    case("two-bare-lf-end-head", "9112 2.2", b"GET / HTTP/1.1\r\nHost: a\n\n"),
    case("bare-cr-ends-head", "9112 2.2", b"GET / HTTP/1.1\r\nHost: a\r\n\r\r\n"),
    case("cr-nul-lf", "9112 2.2", b"GET / HTTP/1.1\r\nHost: a\r\0\n\r\n"),
]

MEANING: list[Case] = [
    line("names-in-any-case", "9110 5.1", b"x-MiXeD: b", saw(HTTP_X_MIXED="b")),
    line("repeated-lines-join-with-comma", "9110 5.3", b"X-A: b\r\nX-A: c", saw(HTTP_X_A="b,c"), saw(HTTP_X_A="b, c")),
    line("repeated-in-other-case", "9110 5.3", b"X-A: b\r\nx-a: c", saw(HTTP_X_A="b,c"), saw(HTTP_X_A="b, c")),
    line("repeated-with-empty", "9110 5.3", b"X-A: b\r\nX-A:", saw(HTTP_X_A="b,"), saw(HTTP_X_A="b, ")),
    line(
        "repeated-apart",
        "9110 5.3",
        b"X-A: b\r\nX-B: x\r\nX-A: c",
        saw(HTTP_X_A="b,c", HTTP_X_B="x"),
        saw(HTTP_X_A="b, c", HTTP_X_B="x"),
    ),
    line(
        "cookies-join-with-semicolon",
        "6265 5.4",
        b"Cookie: a=1\r\nCookie: b=2",
        saw(HTTP_COOKIE="a=1; b=2"),
        why="HTTP/2 front ends split them (RFC 9113 section 8.2.3)",
    ),
    line("one-cookie", "6265 5.4", b"Cookie: a=1; b=2", saw(HTTP_COOKIE="a=1; b=2")),
    line("underscore-is-dropped", "3875 4.1.18", b"X_Real_IP: evil", saw(HTTP_X_REAL_IP=None)),
    line(
        "underscore-does-not-shadow", "3875 4.1.18", b"X-Real-IP: good\r\nX_Real_IP: evil", saw(HTTP_X_REAL_IP="good")
    ),
    line(
        "underscore-first-does-not-shadow",
        "3875 4.1.18",
        b"X_Real-IP: evil\r\nX-Real-IP: good",
        saw(HTTP_X_REAL_IP="good"),
    ),
    line(
        "underscore-content-length-is-no-length",
        "3875 4.1.18",
        b"Content_Length: 5",
        saw(CONTENT_LENGTH=None, body=""),
        saw(CONTENT_LENGTH="", body=""),
    ),
    line(
        "underscore-transfer-encoding-is-none",
        "3875 4.1.18",
        b"Transfer_Encoding: chunked",
        saw(body="", HTTP_TRANSFER_ENCODING=None),
    ),
    line("httpoxy", "CVE-2016-5385", b"Proxy: http://evil.example", saw(HTTP_PROXY=None)),
    line("httpoxy-in-capitals", "CVE-2016-5385", b"PROXY: http://evil.example", saw(HTTP_PROXY=None)),
    line(
        "content-type-without-prefix",
        "3875 4.1.3",
        b"Content-Type: text/plain",
        saw(CONTENT_TYPE="text/plain", HTTP_CONTENT_TYPE=None),
    ),
    line(
        "authorization-reaches-the-application",
        "PEP 3333",
        b"Authorization: Basic eA==",
        saw(HTTP_AUTHORIZATION="Basic eA=="),
    ),
    line("referer", "9110 10.1.3", b"Referer: http://a/", saw(HTTP_REFERER="http://a/")),
    line(
        "upgrade-is-ignored",
        "9110 7.8",
        b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk",
        saw(),
    ),
    line(
        "websocket-upgrade-reaches-the-application",
        "9110 7.8",
        b"Connection: Upgrade\r\nUpgrade: websocket",
        saw(HTTP_UPGRADE="websocket"),
    ),
    line(
        "forwarded-fields-are-not-trusted",
        "7239 8",
        b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https",
        saw(REMOTE_ADDR="127.0.0.1", **{"wsgi.url_scheme": "http"}),
    ),
    line("te-trailers", "9110 10.1.4", b"TE: trailers\r\nConnection: TE", saw()),
    line("max-forwards", "9110 7.6.2", b"Max-Forwards: 0", saw(HTTP_MAX_FORWARDS="0")),
    line("range-reaches-the-application", "9110 14.2", b"Range: bytes=0-1", saw(HTTP_RANGE="bytes=0-1")),
    line(
        "server-name-cannot-be-set",
        "PEP 3333",
        b"Server-Name: evil\r\nRemote-Addr: 6.6.6.6\r\nScript-Name: /x",
        saw(REMOTE_ADDR="127.0.0.1", SCRIPT_NAME="", HTTP_REMOTE_ADDR="6.6.6.6"),
    ),
    case(
        "host-in-any-position",
        "9110 7.2",
        b"GET / HTTP/1.1\r\nX-A: b\r\nhOsT: late\r\n\r\n",
        saw(HTTP_HOST="late", HTTP_X_A="b"),
    ),
    case(
        "hundred-fields",
        "9110 5.4",
        request(GET, *(b"X-%d: %d" % (n, n) for n in range(90))),
        saw(HTTP_X_0="0", HTTP_X_89="89"),
    ),
]


@over(SYNTAX)
def test_field_lines_are_strict(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(MEANING)
def test_fields_reach_the_application_unambiguously(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)
