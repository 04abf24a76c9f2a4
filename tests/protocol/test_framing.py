"""The end of a request body over a socket, read before the application runs and by `--stream-body` while it reads
(RFC 9112 section 6). framing.rs and body.rs of crates/http/tests have the
grammar, crates/server/tests/server/wire.rs the rest."""

from harness.cases import Case, Outcome, case, check, each, over, refused, request, saw
from harness.server import Server

POST = b"POST / HTTP/1.1"
CL = b"Content-Length: "
TE = b"Transfer-Encoding: "
LAST = b"0\r\n\r\n"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"


def length(id: str, value: bytes, outcome: Outcome, body: bytes = b"hello", why: str = "") -> Case:
    return case(id, "9110 8.6", request(POST, CL + value, body=body), outcome, why=why)


def chunked(id: str, rfc: str, body: bytes, outcome: Outcome) -> Case:
    return case(id, rfc, request(POST, TE + b"chunked", body=body), outcome)


LENGTH: list[Case] = [
    length("five", b"\t0005 ", saw(CONTENT_LENGTH="5", body="hello")),
    length("zero", b"0", saw(CONTENT_LENGTH="0", body=""), body=b""),
    length("beyond-memory", b"3000000", saw(body="x" * 3000000), body=b"x" * 3000000),
    length("plus", b"+5", refused()),
    length("beyond-64-bits", b"18446744073709551621", refused(413), why="2**64 + 5"),
    length("list-of-the-same", b"5, 5", refused()),
    case(
        "http-1.0-with-length",
        "9112 6.3",
        b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
        saw("closed", body="hello"),
    ),
    case("http-1.0-without-length", "9112 6.3", b"POST / HTTP/1.0\r\n\r\n", saw("closed", body="")),
    case("head-with-body", "9110 9.3.2", request(b"HEAD / HTTP/1.1", CL + b"5", body=b"hello"), saw()),
    case("ended-before-length", "9112 8", request(POST, CL + b"10", body=b"hello"), refused(), half_close=True),
]

CODING: list[Case] = [
    case("in-any-case", "9112 7", request(POST, TE + b" \tcHuNkEd\t ", body=HELLO), saw(body="hello")),
    case("gzip-chunked", "9112 6.1", request(POST, TE + b"gzip, chunked", body=HELLO), refused(501)),
    case("chunked-is-not-last", "9112 6.1", request(POST, TE + b"chunked, gzip", body=HELLO), refused()),
    case(
        "in-http-1.0",
        "9112 6.1",
        b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + HELLO,
        refused(),
    ),
]

SMUGGLING: list[Case] = [
    case(
        "length-and-coding-that-agree",
        "9112 6.1",
        request(POST, CL + b"15", TE + b"chunked", body=HELLO),
        refused(),
        why="MAY be processed by the coding, then MUST close; refusing is the safe choice",
    ),
    case("length-and-coding", "9112 6.3", request(POST, CL + b"0", TE + b"chunked", body=LAST + SMUGGLED), refused()),
    case("two-lengths", "9112 6.3", request(POST, CL + b"0", CL + b"%d" % len(SMUGGLED), body=SMUGGLED), refused()),
    case(
        "request-in-a-get-body-is-a-body",
        "9110 9.3.1",
        request(b"GET / HTTP/1.1", CL + b"%d" % len(SMUGGLED), body=SMUGGLED),
        saw(PATH_INFO="/", body=SMUGGLED.decode()),
    ),
    case(
        "bytes-behind-a-get-are-the-next-request",
        "9112 6.3",
        request() + SMUGGLED,
        each({"PATH_INFO": "/"}, {"PATH_INFO": "/smuggled"}),
    ),
    case(
        "garbage-behind-a-body-is-refused",
        "9112 6.3",
        request(POST, CL + b"5", body=b"hello") + b"XX\0garbage\r\n\r\n",
        refused(behind={"body": "hello"}),
    ),
]

CHUNKS: list[Case] = [
    chunked("many", "9112 7.1", b"1\r\na\r\n00A\r\n\r\n0\r\n\r\nxyz\r\n" + LAST, saw(body="a\r\n0\r\n\r\nxyz")),
    chunked("large", "9112 7.1", b"11170\r\n" + b"y" * 70000 + b"\r\n" + LAST, saw(body="y" * 70000)),
    chunked("size-with-0x", "9112 7.1", b"0x5\r\nhello\r\n" + LAST, refused()),
    chunked("size-beyond-64-bits", "9112 7.1", b"10000000000000005\r\nhello\r\n" + LAST, refused(413)),
    chunked("data-longer", "9112 7.1", b"4\r\nhello\r\n" + LAST, refused()),
    chunked("bare-lf-after-last", "9112 7.1", b"0\n\r\n", refused()),
    case("cut", "9112 8", request(POST, TE + b"chunked", body=b"5\r\nhello\r\n"), refused(), half_close=True),
]

EXTENSIONS: list[Case] = [
    chunked("name-and-value", "9112 7.1.1", b'5 ; a = "b;\\"" ;c\r\nhello\r\n0;d\r\n\r\n', saw(body="hello")),
    chunked("no-name", "9112 7.1.1", b"5;=b\r\nhello\r\n" + LAST, refused()),
    chunked("without-end", "9112 7.1.1", b"5;" + b"a" * 100_000 + b"\r\nhello\r\n" + LAST, refused()),
]

TRAILERS: list[Case] = [
    chunked(
        "discarded",
        "9110 6.5.1",
        b"5\r\nhello\r\n0\r\nX-A: b\r\nContent-Length: 50\r\nTransfer-Encoding: x\r\nHost: evil\r\n\r\n",
        saw(body="hello", HTTP_X_A=None, HTTP_HOST="test"),
    ),
    chunked("no-colon", "9112 7.1.2", b"0\r\nnonsense\r\n\r\n", refused()),
    chunked("without-end", "9110 6.5", b"0\r\n" + b"X: y\r\n" * 50_000 + b"\r\n", refused(431)),
]


@over(LENGTH)
def test_content_length_is_one_decimal_number(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)


@over(CODING)
def test_chunked_is_the_only_transfer_coding(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)


@over(SMUGGLING)
def test_a_body_has_one_end_for_every_reader(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)


@over(CHUNKS)
def test_chunks_are_exact(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)


@over(EXTENSIONS)
def test_chunk_extensions_are_read_and_bounded(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)


@over(TRAILERS)
def test_trailers_are_discarded_and_bounded(case: Case, way: str, server: Server) -> None:
    check(case, way, server.address)
