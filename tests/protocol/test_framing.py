"""The end of a request body: Content-Length, Transfer-Encoding, and contradictions between them (RFC 9112 section
6)."""

from __future__ import annotations

from harness.cases import CANARY, Case, case, check, each, ok, over, refused, request, saw, then_refused
from harness.server import Server

POST = b"POST / HTTP/1.1"
CL = b"Content-Length: "
TE = b"Transfer-Encoding: "
LAST = b"0\r\n\r\n"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"


def length(id: str, value: bytes, *outcomes, body: bytes = b"hello", rfc: str = "9110 8.6", why: str = "") -> Case:
    return case(id, rfc, request(POST, CL + value, body=body), *outcomes, why=why)


def coding(id: str, line: bytes, *outcomes, body: bytes = HELLO, rfc: str = "9112 6.1", why: str = "") -> Case:
    return case(id, rfc, request(POST, line, body=body), *(outcomes or (refused(400, 501),)), why=why)


LENGTH: list[Case] = [
    length("five", b"5", saw(CONTENT_LENGTH="5", body="hello")),
    length("zero", b"0", saw(CONTENT_LENGTH="0", body=""), body=b""),
    length("leading-zeros", b"0005", saw(body="hello"), refused(), why="1*DIGIT"),
    length("whitespace-around", b"\t5 ", saw(CONTENT_LENGTH="5", body="hello")),
    length("body-with-line-ends-and-nul", b"12", saw(body="\r\n\r\n\0GET / \n"), body=b"\r\n\r\n\0GET / \n"),
    length("body-that-looks-like-a-request", b"%d" % len(SMUGGLED), saw(body=SMUGGLED.decode()), body=SMUGGLED),
    length("large", b"100000", saw(body="x" * 100000), body=b"x" * 100000),
    length("beyond-memory", b"3000000", saw(body="x" * 3000000), body=b"x" * 3000000),
    length("empty-value", b""),
    length("plus", b"+5"),
    length("minus", b"-5"),
    length("minus-zero", b"-0", body=b""),
    length("hexadecimal", b"0x5"),
    length("hexadecimal-digit", b"a", body=b"0123456789"),
    length("decimal-point", b"5.0"),
    length("exponent", b"5e0"),
    length("underscore", b"1_0", body=b"0123456789"),
    length("letters-behind", b"5x"),
    length("letters-before", b"x5"),
    length("space-inside", b"1 0", body=b"0123456789"),
    length("semicolon", b"5;"),
    length("quotes", b'"5"'),
    length("full-width-digit", "\uff15".encode()),
    length("superscript-digit", b"5\xb2"),
    length("arabic-digit", "\u0665".encode()),
    length("vertical-tab", b"5\x0b"),
    length("nul", b"5\0"),
    length("word", b"chunked"),
    length("beyond-64-bits", b"18446744073709551621", refused(400, 413), why="2**64 + 5"),
    length("all-of-64-bits", b"18446744073709551615", refused(400, 413)),
    length("negative-in-32-bits", b"4294967301", refused(400, 413), why="2**32 + 5: a wrapped counter would read 5"),
    length("a-hundred-digits", b"9" * 100, refused(400, 413)),
    length("list-of-the-same", b"5, 5", refused(), saw(CONTENT_LENGTH="5", body="hello"), rfc="9112 6.3"),
    length("list-of-different", b"5, 6", rfc="9112 6.3"),
    length("list-with-empty-element", b"5,", rfc="9112 6.3"),
    length("twice-different", b"5\r\nContent-Length: 6", rfc="9112 6.3"),
    length(
        "twice-the-same", b"5\r\nContent-Length: 5", refused(), saw(CONTENT_LENGTH="5", body="hello"), rfc="9112 6.3"
    ),
    length("twice-in-other-case", b"5\r\ncontent-length: 0", rfc="9112 6.3"),
    length("twice-one-empty", b"5\r\nContent-Length:", rfc="9112 6.3"),
    length("three-times", b"5\r\nContent-Length: 5\r\nContent-Length: 6", rfc="9112 6.3"),
    case(
        "http-1.0-with-length",
        "9112 6.3",
        b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
        saw("closed", body="hello"),
    ),
    case(
        "http-1.0-without-length-has-no-body",
        "9112 6.3",
        b"POST / HTTP/1.0\r\n\r\n",
        saw("closed", body=""),
        refused(400, 411),
    ),
    case("head-with-body", "9110 9.3.2", request(b"HEAD / HTTP/1.1", CL + b"5", body=b"hello"), ok()),
    case(
        "options-with-body", "9110 9.3.7", request(b"OPTIONS / HTTP/1.1", CL + b"5", body=b"hello"), saw(body="hello")
    ),
    case("ended-before-length", "9112 8", request(POST, CL + b"10", body=b"hello"), refused(), half_close=True),
    case("ended-before-any-of-it", "9112 8", request(POST, CL + b"10"), refused(), half_close=True),
    case(
        "get-ended-before-length",
        "9112 8",
        request(b"GET / HTTP/1.1", CL + b"10", body=b"x"),
        refused(),
        half_close=True,
    ),
]

CODING: list[Case] = [
    coding("chunked", TE + b"chunked", saw(body="hello")),
    coding("chunked-in-capitals", TE + b"CHUNKED", saw(body="hello"), rfc="9112 7"),
    coding("chunked-mixed", TE + b"cHuNkEd", saw(body="hello"), rfc="9112 7"),
    coding("chunked-whitespace-around", TE + b" \tchunked\t ", saw(body="hello"), refused()),
    coding("empty-list-elements", TE + b", chunked", saw(body="hello"), refused(400, 501), rfc="9110 5.6.1"),
    coding("chunked-empty-body", TE + b"chunked", saw(body=""), body=LAST),
    coding("chunked-get", TE + b"chunked", saw(body="hello")),
    coding("gzip-chunked", TE + b"gzip, chunked"),
    coding("gzip", TE + b"gzip"),
    coding("deflate-chunked", TE + b"deflate, chunked"),
    coding("identity", TE + b"identity"),
    coding("identity-chunked", TE + b"identity, chunked"),
    coding("chunked-identity", TE + b"chunked, identity"),
    coding("chunked-gzip", TE + b"chunked, gzip"),
    coding("chunked-twice", TE + b"chunked, chunked"),
    coding("chunked-twice-in-two-lines", TE + b"chunked\r\nTransfer-Encoding: chunked"),
    coding("chunked-and-identity-lines", TE + b"chunked\r\nTransfer-Encoding: identity"),
    coding("identity-and-chunked-lines", TE + b"identity\r\nTransfer-Encoding: chunked"),
    coding("chunked-and-other-case-line", TE + b"chunked\r\ntransfer-encoding: x"),
    coding("empty", TE),
    coding("unknown", TE + b"cow"),
    coding("unknown-with-prefix", TE + b"xchunked"),
    coding("unknown-with-suffix", TE + b"chunkedx"),
    coding("trailing-comma", TE + b"chunked,", refused(400, 501), saw(body="hello"), rfc="9110 5.6.1"),
    coding("parameter", TE + b"chunked;q=1"),
    coding("parameter-empty", TE + b"chunked;"),
    coding("quoted", TE + b'"chunked"'),
    coding("single-quoted", TE + b"'chunked'"),
    coding("comment", TE + b"chunked (x)"),
    coding("space-separated", TE + b"x chunked"),
    coding("vertical-tab-before", TE + b"\x0bchunked"),
    coding("form-feed-behind", TE + b"chunked\x0c"),
    coding("nul-behind", TE + b"chunked\0"),
    coding("non-breaking-space", TE + b"\xa0chunked"),
    coding("kelvin-sign", TE + "chun\u212aed".encode(), why="K is U+212A: lower-cased by Unicode it is k"),
    coding("wrapped-value", b"Transfer-Encoding:\r\n chunked", refused(), rfc="9112 5.2"),
    coding("wrapped-in-the-middle", b"Transfer-Encoding: chun\r\n ked", refused(), rfc="9112 5.2"),
    coding("space-before-colon", b"Transfer-Encoding : chunked", refused(), rfc="9112 5.1"),
    coding("tab-before-colon", b"Transfer-Encoding\t: chunked", refused(), rfc="9112 5.1"),
    coding("space-before-name", b"X: y\r\n Transfer-Encoding: chunked", refused(), rfc="9112 5.2"),
    coding("bare-cr-before-name", b"X: y\rTransfer-Encoding: chunked", refused(), rfc="9112 2.2"),
    coding("bare-lf-before-name", b"X: y\nTransfer-Encoding: chunked", refused(), rfc="9112 2.2"),
    coding("nul-in-name", b"Transfer-Encoding\0: chunked", refused(), rfc="9110 5.1"),
    case(
        "in-http-1.0", "9112 6.1", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + HELLO, refused(400, 501)
    ),
    case(
        "in-http-1.0-with-keep-alive",
        "9112 6.1",
        b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + HELLO,
        refused(400, 501),
    ),
]

SMUGGLING: list[Case] = [
    case("cl-te", "9112 6.3", request(POST, CL + b"6", TE + b"chunked", body=LAST + b"G"), refused()),
    case("te-cl", "9112 6.3", request(POST, TE + b"chunked", CL + b"4", body=b"5c\r\nx\r\n" + LAST), refused()),
    case(
        "cl-te-consistent",
        "9112 6.1",
        request(POST, CL + b"15", TE + b"chunked", body=HELLO),
        refused(),
        saw("closed", body="hello"),
        why="MAY be processed by the coding, then MUST close; refusing is the safe choice",
    ),
    case("cl-zero-te", "9112 6.3", request(POST, CL + b"0", TE + b"chunked", body=LAST + SMUGGLED), refused()),
    case(
        "te-cl-with-smuggled-request",
        "9112 6.3",
        request(POST, TE + b"chunked", CL + b"3", body=b"%x\r\n" % len(SMUGGLED) + SMUGGLED + b"\r\n" + LAST),
        refused(),
    ),
    case("cl-te-identity", "9112 6.3", request(POST, CL + b"5", TE + b"identity", body=b"hello"), refused(400, 501)),
    case("cl-te-unknown", "9112 6.3", request(POST, CL + b"5", TE + b"xchunked", body=b"hello"), refused(400, 501)),
    case("cl-te-empty", "9112 6.3", request(POST, CL + b"5", TE, body=b"hello"), refused(400, 501)),
    case(
        "cl-te-obfuscated-by-tab",
        "9112 6.3",
        request(POST, CL + b"6", b"Transfer-Encoding:\tchunked", body=LAST + b"G"),
        refused(),
    ),
    case(
        "cl-te-obfuscated-by-space-before-colon",
        "9112 5.1",
        request(POST, CL + b"6", b"Transfer-Encoding : chunked", body=LAST + b"G"),
        refused(),
    ),
    case(
        "cl-te-obfuscated-by-fold",
        "9112 5.2",
        request(POST, CL + b"6", b"X: y\r\n\tTransfer-Encoding: chunked", body=LAST + b"G"),
        refused(),
    ),
    case(
        "cl-te-obfuscated-by-bare-lf",
        "9112 2.2",
        request(POST, CL + b"6", b"X: y\nTransfer-Encoding: chunked", body=LAST + b"G"),
        refused(),
    ),
    case(
        "te-te",
        "9112 6.3",
        request(POST, CL + b"4", TE + b"chunked", b"Transfer-encoding: cow", body=HELLO),
        refused(400, 501),
    ),
    case("cl-cl", "9112 6.3", request(POST, CL + b"0", CL + b"%d" % len(SMUGGLED), body=SMUGGLED), refused()),
    case("cl-list", "9112 6.3", request(POST, CL + b"0, %d" % len(SMUGGLED), body=SMUGGLED), refused()),
    case(
        "cl-obfuscated-by-space-before-colon",
        "9112 5.1",
        request(POST, b"Content-Length : 5", body=b"hello"),
        refused(),
    ),
    case("cl-obfuscated-by-cr", "9112 2.2", request(POST, b"X: y\rContent-Length: 5", body=b"hello"), refused()),
    case("cl-obfuscated-by-fold", "9112 5.2", request(POST, b"Content-Length:\r\n 5", body=b"hello"), refused()),
    case("cl-obfuscated-by-plus", "9110 8.6", request(POST, CL + b"+%d" % len(SMUGGLED), body=SMUGGLED), refused()),
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
        then_refused({"body": "hello"}),
    ),
]

CHUNKS: list[Case] = [
    coding("one", TE + b"chunked", saw(body="hello"), rfc="9112 7.1"),
    coding(
        "many", TE + b"chunked", saw(body="abcabc"), body=b"1\r\na\r\n2\r\nbc\r\n3\r\nabc\r\n" + LAST, rfc="9112 7.1"
    ),
    coding(
        "upper-case-size", TE + b"chunked", saw(body="0123456789"), body=b"A\r\n0123456789\r\n" + LAST, rfc="9112 7.1"
    ),
    coding(
        "lower-case-size", TE + b"chunked", saw(body="0123456789"), body=b"a\r\n0123456789\r\n" + LAST, rfc="9112 7.1"
    ),
    coding("leading-zeros", TE + b"chunked", saw(body="hello"), body=b"005\r\nhello\r\n00\r\n\r\n", rfc="9112 7.1"),
    coding(
        "line-ends-in-data",
        TE + b"chunked",
        saw(body="\r\n0\r\n\r\n"),
        body=b"7\r\n\r\n0\r\n\r\n\r\n" + LAST,
        rfc="9112 7.1",
    ),
    coding(
        "large",
        TE + b"chunked",
        saw(body="y" * 70000),
        body=b"11170\r\n" + b"y" * 70000 + b"\r\n" + LAST,
        rfc="9112 7.1",
    ),
    coding("many-small", TE + b"chunked", saw(body="z" * 500), body=b"1\r\nz\r\n" * 500 + LAST, rfc="9112 7.1"),
    coding(
        "canary-in-data",
        TE + b"chunked",
        saw(body=CANARY.decode()),
        body=b"%x\r\n" % len(CANARY) + CANARY + b"\r\n" + LAST,
        rfc="9112 7.1",
    ),
    *(
        coding("size-" + id, TE + b"chunked", refused(*answers), body=body, rfc="9112 7.1")
        for id, body, answers in [
            ("missing", b"\r\nhello\r\n" + LAST, (400,)),
            ("not-hexadecimal", b"g\r\nhello\r\n" + LAST, (400,)),
            ("with-0x", b"0x5\r\nhello\r\n" + LAST, (400,)),
            ("plus", b"+5\r\nhello\r\n" + LAST, (400,)),
            ("minus", b"-5\r\nhello\r\n" + LAST, (400,)),
            ("minus-zero", b"-0\r\n\r\n", (400,)),
            ("underscore", b"1_0\r\n0123456789abcdef\r\n" + LAST, (400,)),
            ("decimal-point", b"5.0\r\nhello\r\n" + LAST, (400,)),
            ("space-before", b" 5\r\nhello\r\n" + LAST, (400,)),
            ("tab-before", b"\t5\r\nhello\r\n" + LAST, (400,)),
            ("space-inside", b"1 0\r\n0123456789abcdef\r\n" + LAST, (400,)),
            ("nul-behind", b"5\0\r\nhello\r\n" + LAST, (400,)),
            ("letters-behind", b"5xyz\r\nhello\r\n" + LAST, (400,)),
            ("full-width", "\uff15\r\nhello\r\n".encode() + LAST, (400,)),
            ("beyond-64-bits", b"10000000000000005\r\nhello\r\n" + LAST, (400, 413)),
            ("all-of-64-bits", b"ffffffffffffffff\r\nhello\r\n" + LAST, (400, 413)),
            ("negative-in-64-bits", b"fffffffffffffffb\r\nhello\r\n" + LAST, (400, 413)),
            ("a-thousand-zeros", b"0" * 1000 + b"5\r\nhello\r\n" + LAST, (400, 413)),
        ]
    ),
    coding(
        "space-after-size",
        TE + b"chunked",
        refused(),
        saw(body="hello"),
        body=b"5 \r\nhello\r\n" + LAST,
        rfc="9112 7.1.1",
        why="BWS before an extension that does not come",
    ),
    *(
        coding("line-" + id, TE + b"chunked", refused(), body=body, rfc="9112 7.1")
        for id, body in [
            ("bare-lf-after-size", b"5\nhello\r\n" + LAST),
            ("bare-cr-after-size", b"5\rhello\r\n" + LAST),
            ("cr-cr-lf-after-size", b"5\r\r\nhello\r\n" + LAST),
            ("bare-lf-after-data", b"5\r\nhello\n" + LAST),
            ("no-end-after-data", b"5\r\nhello" + LAST),
            ("two-bytes-after-data", b"5\r\nhelloXX" + LAST),
            ("data-longer", b"4\r\nhello\r\n" + LAST),
            ("data-shorter", b"6\r\nhello\r\n" + LAST),
            ("bare-lf-after-last", b"0\n\r\n"),
            ("bare-lf-at-the-end", b"0\r\n\n"),
            ("bare-lf-everywhere", b"5\nhello\n0\n\n"),
            ("bare-cr-at-the-end", b"0\r\n\rX"),
        ]
    ),
    *(
        case("cut-" + id, "9112 8", request(POST, TE + b"chunked", body=body), refused(), half_close=True)
        for id, body in [
            ("before-the-first-size", b""),
            ("in-a-size", b"5"),
            ("in-data", b"5\r\nhe"),
            ("after-data", b"5\r\nhello"),
            ("before-the-last-chunk", b"5\r\nhello\r\n"),
            ("in-the-last-chunk", b"5\r\nhello\r\n0\r\n"),
            ("in-the-last-line-end", b"5\r\nhello\r\n0\r\n\r"),
        ]
    ),
]

EXTENSIONS: list[Case] = [
    *(
        coding(
            id, TE + b"chunked", saw(body="hello"), body=b"5" + extension + b"\r\nhello\r\n" + LAST, rfc="9112 7.1.1"
        )
        for id, extension in [
            ("name", b";a"),
            ("name-and-value", b";a=b"),
            ("several", b";a=b;c;d=e"),
            ("quoted-value", b';a="b c"'),
            ("quoted-semicolon", b';a="b;c"'),
            ("quoted-pair", b';a="\\""'),
        ]
    ),
    coding(
        "on-the-last-chunk", TE + b"chunked", saw(body="hello"), body=b"5\r\nhello\r\n0;a=b\r\n\r\n", rfc="9112 7.1.1"
    ),
    coding(
        "whitespace-around-semicolon",
        TE + b"chunked",
        saw(body="hello"),
        refused(),
        body=b"5 ; a=b\r\nhello\r\n" + LAST,
        rfc="9112 7.1.1",
    ),
    *(
        coding(
            id,
            TE + b"chunked",
            refused(400, 413, 431),
            body=b"5" + extension + b"\r\nhello\r\n" + LAST,
            rfc="9112 7.1.1",
        )
        for id, extension in [
            ("bare-lf", b";a\nx"),
            ("bare-cr", b";a\rx"),
            ("nul", b";a\0"),
            ("control", b";a\x01"),
            ("bare-lf-in-quotes", b';a="\n"'),
            ("without-end", b";" + b"a" * 100_000),
        ]
    ),
    *(
        coding(
            id,
            TE + b"chunked",
            refused(),
            saw(body="hello"),
            body=b"5" + extension + b"\r\nhello\r\n" + LAST,
            rfc="9112 7.1.1",
            why="malformed, and without effect",
        )
        for id, extension in [("empty", b";"), ("no-name", b";=b"), ("no-value", b";a="), ("unclosed-quote", b';a="b')]
    ),
]

TRAILERS: list[Case] = [
    coding(
        "one",
        TE + b"chunked",
        saw(body="hello", HTTP_X_A=None),
        body=b"5\r\nhello\r\n0\r\nX-A: b\r\n\r\n",
        rfc="9112 7.1.2",
    ),
    coding(
        "several",
        TE + b"chunked",
        saw(body="hello"),
        body=b"5\r\nhello\r\n0\r\nX-A: b\r\nX-B: c\r\n\r\n",
        rfc="9112 7.1.2",
    ),
    coding(
        "framing-fields-change-nothing",
        TE + b"chunked",
        saw(body="hello"),
        refused(),
        body=b"5\r\nhello\r\n0\r\nContent-Length: 50\r\nTransfer-Encoding: x\r\n\r\n",
        rfc="9110 6.5.1",
    ),
    coding(
        "host-changes-nothing",
        TE + b"chunked",
        saw(body="hello", HTTP_HOST="test"),
        refused(),
        body=b"5\r\nhello\r\n0\r\nHost: evil\r\n\r\n",
        rfc="9110 6.5.1",
    ),
    coding("no-colon", TE + b"chunked", refused(), body=b"0\r\nnonsense\r\n\r\n", rfc="9112 7.1.2"),
    coding("space-before-colon", TE + b"chunked", refused(), body=b"0\r\nX : y\r\n\r\n", rfc="9112 5.1"),
    coding("fold", TE + b"chunked", refused(), body=b"0\r\nX: y\r\n z\r\n\r\n", rfc="9112 5.2"),
    coding("bare-lf", TE + b"chunked", refused(), body=b"0\r\nX: y\n\r\n", rfc="9112 2.2"),
    coding("nul", TE + b"chunked", refused(), body=b"0\r\nX: \0\r\n\r\n", rfc="9110 5.5"),
    coding(
        "without-end",
        TE + b"chunked",
        refused(400, 413, 431),
        body=b"0\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        rfc="9110 6.5",
    ),
    coding(
        "one-without-end",
        TE + b"chunked",
        refused(400, 413, 431),
        body=b"0\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        rfc="9110 6.5",
    ),
    coding(
        "a-request-where-trailers-should-end",
        TE + b"chunked",
        refused(),
        body=b"0\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        rfc="9112 7.1.2",
    ),
]


@over(LENGTH)
def test_content_length_is_one_decimal_number(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(CODING)
def test_chunked_is_the_only_transfer_coding(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(SMUGGLING)
def test_a_body_has_one_end_for_every_reader(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(CHUNKS)
def test_chunks_are_exact(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(EXTENSIONS)
def test_chunk_extensions_are_read_and_bounded(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)


@over(TRAILERS)
def test_trailers_are_discarded_and_bounded(case: Case, way: str, echo: Server) -> None:
    check(case, way, echo.address)
