"""The Host field over a socket: exactly one in HTTP/1.1, and well-formed (RFC 9112 section 3.2, RFC 9110 section 7.2).
framing.rs and target.rs of crates/http/tests have its grammar."""

from harness.cases import Case, case, check, over, refused, request, saw
from harness.server import Server

CASES: list[Case] = [
    case("missing", "9112 3.2", request(host=None), refused()),
    case("missing-in-1.0", "9112 3.2", b"GET / HTTP/1.0\r\n\r\n", saw("closed", HTTP_HOST=None)),
    case("the-same-twice", "9112 3.2", request(b"GET / HTTP/1.1", b"hOST: test"), refused()),
    case("empty", "9110 7.2", request(host=b"Host:"), saw(HTTP_HOST=""), why="allowed: the target has no authority"),
    case(
        "name-and-port",
        "9110 7.2",
        request(host=b"Host: \t My_Service.Example.:8080 \t"),
        saw(HTTP_HOST="My_Service.Example.:8080"),
    ),
    case("empty-port", "3986 3.2.3", request(host=b"Host: [2001:db8::1]:"), saw(HTTP_HOST="[2001:db8::1]:")),
    case("percent-encoded", "3986 3.2.2", request(host=b"Host: a%41b"), saw(HTTP_HOST="a%41b")),
    case("port-beyond-65535", "3986 3.2.3", request(host=b"Host: a:65536"), refused()),
    case("comma", "3986 3.2.2", request(host=b"Host: a,b"), refused(), why="it would read like two lines joined"),
    case("path", "9110 7.2", request(host=b"Host: example.org/x"), refused()),
]


@over(CASES)
def test_host_is_given_once_and_is_an_authority(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)
