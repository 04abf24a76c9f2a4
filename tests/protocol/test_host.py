"""The Host field: exactly one in HTTP/1.1, and well-formed (RFC 9112 section 3.2, RFC 9110 section 7.2)."""

from __future__ import annotations

from harness.cases import Case, case, check, over, refused, request, saw
from harness.server import Server


def host(id: str, value: bytes, *outcomes, rfc: str = "9110 7.2", why: str = "") -> Case:
    return case(id, rfc, request(host=b"Host: " + value), *outcomes, why=why)


CASES: list[Case] = [
    case("missing", "9112 3.2", request(host=None), refused()),
    case("missing-with-other-fields", "9112 3.2", request(b"GET / HTTP/1.1", b"X-Host: a", host=None), refused()),
    case("missing-in-1.0", "9112 3.2", b"GET / HTTP/1.0\r\n\r\n", saw("closed", HTTP_HOST=None)),
    case("twice", "9112 3.2", request(b"GET / HTTP/1.1", b"Host: b"), refused()),
    case("the-same-twice", "9112 3.2", request(b"GET / HTTP/1.1", b"Host: test"), refused()),
    case("twice-in-other-case", "9112 3.2", request(b"GET / HTTP/1.1", b"HOST: b"), refused()),
    case("twice-in-1.0", "9112 3.2", b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", refused()),
    case("list-in-one-line", "9110 7.2", request(host=b"Host: a, b"), refused()),
    host("empty", b"", saw(HTTP_HOST=""), refused(), why="allowed when the target has no authority"),
    host("name", b"example.org", saw(HTTP_HOST="example.org")),
    host("name-with-port", b"example.org:8080", saw(HTTP_HOST="example.org:8080")),
    host("name-with-empty-port", b"example.org:", saw(HTTP_HOST="example.org:"), refused(), rfc="3986 3.2.3"),
    host("upper-case", b"Example.ORG", saw(HTTP_HOST="Example.ORG")),
    host("trailing-dot", b"example.org.", saw(HTTP_HOST="example.org.")),
    host(
        "underscore",
        b"my_service:80",
        saw(HTTP_HOST="my_service:80"),
        rfc="3986 3.2.2",
        why="container names have them",
    ),
    host("address", b"127.0.0.1:8000", saw(HTTP_HOST="127.0.0.1:8000")),
    host("ipv6", b"[::1]:8000", saw(HTTP_HOST="[::1]:8000")),
    host("ipv6-without-port", b"[2001:db8::1]", saw(HTTP_HOST="[2001:db8::1]")),
    host("percent-encoded", b"a%41b", saw(HTTP_HOST="a%41b"), refused(), rfc="3986 3.2.2"),
    host("surrounding-whitespace", b" \t example.org \t", saw(HTTP_HOST="example.org"), rfc="9112 5.1"),
    host("port-with-letters", b"a:80x"),
    host("port-negative", b"a:-1"),
    host("port-beyond-65535", b"a:65536", refused(), saw(), why="the grammar allows any digits"),
    host("two-ports", b"a:1:2"),
    host("space-inside", b"a b"),
    host("tab-inside", b"a\tb"),
    host("comma", b"a,b", refused(), saw(HTTP_HOST="a,b"), why="sub-delims are in reg-name"),
    host("userinfo", b"user@example.org"),
    host("path", b"example.org/x"),
    host("query", b"example.org?x"),
    host("fragment", b"example.org#x"),
    host("scheme", b"http://example.org"),
    host("backslash", b"a\\b"),
    host("quote", b'a"b'),
    host("angle-brackets", b"<script>"),
    host("curly-braces", b"{a}"),
    host("ipv6-unclosed", b"[::1"),
    host("ipv6-unopened", b"::1]"),
    host("ipv6-without-brackets", b"::1"),
    host("brackets-without-address", b"[]"),
    host("brackets-with-name", b"[localhost]"),
    host("text-after-brackets", b"[::1]x"),
    host("latin-1", b"caf\xe9"),
    host("utf-8", "bücher.example".encode()),
    host("only-port", b":80", refused(), rfc="9110 4.2.1"),
    host("nul", b"a\0b"),
]


@over(CASES)
def test_host_is_given_once_and_is_an_authority(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)
