"""Field lines over a socket, and how they reach the application (RFC 9112 section 5, RFC 9110 section 5).
head.rs of crates/http/tests has their grammar."""

from harness.cases import Case, Outcome, case, check, over, refused, request, saw
from harness.encrypted import SCHEME, TLS
from harness.server import Server

GET = b"GET / HTTP/1.1"


def line(id: str, rfc: str, text: bytes, outcome: Outcome, why: str = "") -> Case:
    return case(id, rfc, request(GET, text), outcome, why=why)


SYNTAX: list[Case] = [
    line(
        "values-as-latin-1",
        "PEP 3333",
        b"X-A:b:c  \t d\r\nX-B: \t caf\xe9 \t \r\nX-C:\r\n123: " + b"b" * 4000,
        saw(HTTP_X_A="b:c  \t d", HTTP_X_B="caf\u00e9", HTTP_X_C="", HTTP_123="b" * 4000),
    ),
    line("all-token-characters", "9110 5.1", b"!#$%&'*+-.^`|~aZ0: x", saw()),
    line("space-before-colon", "9112 5.1", b"X-A : b", refused()),
    line("no-colon", "9112 5", b"X-A", refused()),
    line("separator-in-name", "9110 5.1", b"X@A: b", refused()),
    line("nul-in-value", "9110 5.5", b"X-A: b\0c", refused()),
    line("bare-lf-ends-line", "9112 2.2", b"X-A: b\nX-B: c", refused()),
    line("obs-fold", "9112 5.2", b"X-A: b\r\n c", refused(), why="400 or a space; we take the first"),
]

MEANING: list[Case] = [
    line("names-in-any-case", "9110 5.1", b"x-MiXeD: b", saw(HTTP_X_MIXED="b")),
    line("repeated-lines-join-with-comma", "9110 5.3", b"X-A: b\r\nX-A: c", saw(HTTP_X_A="b, c")),
    line("repeated-in-other-case", "9110 5.3", b"X-A: b\r\nx-a: c", saw(HTTP_X_A="b, c")),
    line("repeated-with-empty", "9110 5.3", b"X-A: b\r\nX-A:", saw(HTTP_X_A="b, ")),
    line("repeated-apart", "9110 5.3", b"X-A: b\r\nX-B: x\r\nX-A: c", saw(HTTP_X_A="b, c", HTTP_X_B="x")),
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
        "underscore-content-length-is-no-length", "3875 4.1.18", b"Content_Length: 5", saw(CONTENT_LENGTH=None, body="")
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
        b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: " + (b"http" if TLS else b"https"),
        saw(REMOTE_ADDR="127.0.0.1", **{"wsgi.url_scheme": SCHEME}),
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
