"""Responses on the wire: head, framing, and what an application cannot break (RFC 9110 sections 6 and 8, RFC 9112 section 6)."""

from email.utils import parsedate_to_datetime

import pytest
from harness.server import Server, shared
from harness.wire import Broken, Client, Response

server = shared(Server, "responses:app")


def ask(
    client: Client,
    path: str,
    method: str = "GET",
    version: str = "1.1",
    fields: tuple[str, ...] = (),
    body: bytes = b"",
) -> Response:
    lines = [f"{method} {path} HTTP/{version}", "Host: test", *fields, "", ""]
    return client.ask("\r\n".join(lines).encode("latin-1") + body, method, version)


def lives(client: Client) -> bool:
    """The connection serves another request, and nothing stands between the two responses."""
    return client.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n") and client.response().body == b"hello"


# Rows: path, body, framing in 1.1.
SHAPES = [
    ("/", b"hello", "length"),
    ("/list", b"onetwothree", "length"),
    ("/tuple", b"onetwo", "length"),
    ("/empty-list", b"", "length"),
    ("/generator", b"onetwothree", "chunked"),
    ("/empty-generator", b"", "length"),
    ("/empty-blocks", b"", "length"),
    ("/lengthed-generator", b"onetwothree", "length"),
    ("/late", b"late", "chunked"),
    ("/big", b"x" * 5_000_000, "length"),
    # RFC 9110 section 8.6: nothing beyond Content-Length.
    ("/long", b"onetw", "length"),
    ("/long-list", b"onetw", "length"),
    ("/zero-but-body", b"", "length"),
    ("/crash-after-complete", b"one", "length"),
    ("/crash-in-close", b"hello", "chunked"),
]


@pytest.mark.parametrize(("path", "body", "framing"), SHAPES, ids=[row[0].strip("/") or "hello" for row in SHAPES])
@pytest.mark.parametrize("way", ["1.1", "1.1-close", "1.1-head", "1.0", "1.0-keep-alive"])
def test_a_body_is_framed_exactly(server: Server, path: str, body: bytes, framing: str, way: str) -> None:
    version, _, option = way.partition("-")
    method = "HEAD" if option == "head" else "GET"
    fields = ("Connection: " + option,) if option in {"close", "keep-alive"} else ()
    with server.client() as client:
        response = ask(client, path, method, version, fields)
        assert response.status == 200
        assert response.version == "1.1", "RFC 9112 section 2.3: our own version, whatever the client's"
        assert response.body == (b"" if method == "HEAD" else body)
        if method == "GET":
            assert response.framing == ("close" if (version, framing) == ("1.0", "chunked") else framing)
        if way in {"1.1-close", "1.0"} or response.framing == "close":
            client.at_end()
        else:
            assert lives(client)


@pytest.mark.parametrize("path", ["/", "/list", "/lengthed-generator"])
def test_head_has_the_fields_of_get(server: Server, path: str) -> None:
    with server.client() as client:
        get, head = ask(client, path), ask(client, path, "HEAD")
        strip = [[(k, v) for k, v in each.fields if k.lower() != "date"] for each in (get, head)]
        assert strip[0] == strip[1], "RFC 9110 section 9.3.2"


@pytest.mark.parametrize("path", ["/generator", "/empty-list"])
def test_head_claims_no_length_that_only_the_body_knows(server: Server, path: str) -> None:
    # An empty list is what frameworks answer to HEAD: the length 0 would be that of no GET.
    with server.client() as client:
        response = ask(client, path, "HEAD")
        assert "content-length" not in response
        assert lives(client)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_no_content_and_not_modified_have_no_body(server: Server, status: str, method: str) -> None:
    with server.client() as client:
        response = ask(client, "/status", method, fields=(f"X-Status: {status}",))
        assert response.status == int(status[:3])
        assert "transfer-encoding" not in response
        assert lives(client), "bytes of a forbidden body would stand before the next response"


def test_reset_content_has_no_body(server: Server) -> None:
    with server.client() as client:
        response = ask(client, "/status", fields=("X-Status: 205 Reset Content",))
        assert (response.body, response["content-length"]) == (b"", "0")
        assert lives(client)


@pytest.mark.parametrize(
    "status",
    [
        "200 OK",
        "201 Created",
        "299 Whatever",
        "404 Not Found",
        "418 I'm a teapot",
        "599 x",
        # RFC 9110 section 15 calls 600 to 999 invalid; they are the application's choice.
        "999 Beyond",
        # RFC 9112 section 4 allows an empty phrase, though PEP 3333 asks for one.
        "200",
        "404 Tr\u00e8s perdu",
        "200 a\tb",
    ],
)
def test_any_three_digit_status_and_phrase_is_sent_as_given(server: Server, status: str) -> None:
    with server.client() as client:
        response = ask(client, "/status", fields=(f"X-Status: {status}",))
        assert f"{response.status} {response.reason}".strip() == status
        assert response.body == b"body"
        assert lives(client)


@pytest.mark.parametrize(
    "status",
    [
        "20 OK",
        "2000 OK",
        "abc OK",
        "OK",
        "",
        "-20 OK",
        "+200 OK",
        "2 00",
        "0200 OK",
        "200OK",
        "20\u00b2 OK",
        "000 Zero",
        "099 Low",
        "100 Continue",
        "101 Switching Protocols",
        "199 Interim",
    ],
    ids=lambda status: status or "empty",
)
def test_a_bad_status_is_an_error_of_the_application(server: Server, status: str) -> None:
    assert server.get("/status", f"X-Status: {status}").status == 500
    assert server.get().status == 200, "the server goes on"


def test_field_values_are_latin_1(server: Server) -> None:
    assert server.get("/field", "X-Name: X-A", "X-Value: caf\\xe9")["X-A"] == "caf\u00e9"


def test_repeated_fields_keep_their_order(server: Server) -> None:
    response = server.get("/twice-field")
    assert response.all("set-cookie") == ["a=1", "b=2"], "RFC 6265 section 3: never joined"
    assert response.all("x-order") == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "b\\r\\nX-Injected: c"),
        ("X-A", "b\\nX-Injected: c"),
        ("X-A", "b\\rX-Injected: c"),
        ("X-A", "b\\0c"),
        ("X-A", "b\\r\\n folded"),
        ("X-A", "b\\n"),
        ("X-A", "b\\r\\n\\r\\n<script>"),
        ("X-A", "\\x7f"),
        ("X-A", "\\x0b"),
        ("X-A\\r\\nX-Injected: c\\r\\nX-B", "d"),
        ("X-A:", "b"),
        ("X A", "b"),
        ("X-A\\n", "b"),
        ("\\xe9", "b"),
        ("", "b"),
        ("X-A", "\\u20ac"),
        ("X-\\u20ac", "b"),
        ("Set-Cookie", "a=b\\r\\nSet-Cookie: evil=1"),
        ("Location", "/\\r\\n\\r\\nHTTP/1.1 200 OK"),
    ],
)
def test_a_field_that_would_break_the_head_is_refused(server: Server, name: str, value: str) -> None:
    response = server.get("/field", f"X-Name: {name}", f"X-Value: {value}")
    assert response.status == 500
    assert "X-Injected" not in response
    assert b"Injected" not in response.body
    assert server.logged("Error"), "the log says why"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Connection", "keep-alive"),
        ("Transfer-Encoding", "chunked"),
        ("Keep-Alive", "timeout=5"),
        ("Upgrade", "h2c"),
        ("Connection", "X-A"),
        ("Trailer", "X-A"),
        ("Proxy-Authenticate", "Basic"),
    ],
)
def test_hop_by_hop_fields_of_the_application_are_left_out(server: Server, name: str, value: str) -> None:
    # PEP 3333 forbids them to applications; RFC 9112 section 6.1 leaves framing to the server.
    with server.client() as client:
        response = ask(client, "/field", fields=(f"X-Name: {name}", f"X-Value: {value}"))
        assert (response.status, response.body) == (200, b"body")
        assert name not in response
        assert lives(client)


def test_close_of_the_application_closes_the_connection(server: Server) -> None:
    with server.client() as client:
        response = ask(client, "/field", fields=("X-Name: Connection", "X-Value: close"))
        assert response.status == 200
        assert response.connection == {"close"}
        client.at_end(clean=True)


@pytest.mark.parametrize("name", ["Date", "Server"])
def test_date_and_server_of_the_application_replace_ours(server: Server, name: str) -> None:
    value = "Thu, 01 Jan 1970 00:00:00 GMT"
    assert server.get("/field", f"X-Name: {name}", f"X-Value: {value}").all(name) == [value]


@pytest.mark.parametrize("path", ["/", "/generator", "/crash-before", "/empty-list"])
def test_every_response_has_a_date(server: Server, path: str) -> None:
    date = server.get(path)["Date"]
    assert date.endswith(" GMT")
    assert len(date) == 29
    parsedate_to_datetime(date)


@pytest.mark.parametrize("length", ["-1", "+5", "5x", "0x5", "5.0", "\u00b2", "5,5", "99999999999999999999999"])
def test_a_bad_content_length_is_an_error_of_the_application(server: Server, length: str) -> None:
    assert server.get("/bad-length", f"X-Length: {length}").status == 500


@pytest.mark.parametrize(("length", "status"), [("5", 200), ("6", 500)])
def test_two_content_lengths_never_leave(server: Server, length: str, status: int) -> None:
    # The same twice is sent once; two that differ are an error.
    response = server.get("/two-lengths", f"X-Length: {length}")
    assert response.status == status
    assert len(response.all("content-length")) == 1


@pytest.mark.parametrize(
    ("path", "sent"),
    [("/short", b"onetwo"), ("/short-list", b"one"), ("/crash-in-lengthed-body", b"one"), ("/empty-but-promised", b"")],
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_body_shorter_than_promised_breaks_visibly(server: Server, path: str, sent: bytes, version: str) -> None:
    with server.client() as client, pytest.raises(Broken) as broken:
        ask(client, path, version=version)
    assert broken.value.response is not None
    assert broken.value.response.body == sent


@pytest.mark.parametrize("path", ["/crash-in-body", "/exit-in-body"])
def test_an_exception_in_the_body_breaks_visibly(server: Server, path: str) -> None:
    with server.client() as client, pytest.raises(Broken) as broken:
        ask(client, path)
    response = broken.value.response
    assert response is not None
    assert response.status == 200
    assert response.body == b"one"
    assert 0 not in response.chunks, "a last chunk would make it look complete"


@pytest.mark.parametrize("path", ["/crash-in-body", "/exit-in-body"])
def test_an_exception_in_the_body_is_visible_in_http_1_0_too(server: Server, path: str) -> None:
    # Without a length the end of the stream is the end of the body: only a reset tells the client.
    with server.client() as client, pytest.raises(Broken) as broken:
        ask(client, path, version="1.0")
    assert broken.value.reset


@pytest.mark.parametrize(
    "path",
    ["/crash-before", "/crash-after-start", "/crash-in-first-block", "/exit", "/keyboard-interrupt", "/no-start"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_error_before_the_head_is_a_complete_500(server: Server, path: str, method: str) -> None:
    with server.client() as client:
        response = ask(client, path, method)
        assert response.status == 500
        assert "x-lost" not in response
        assert "secret" not in response.body.decode()
        if method != "HEAD":
            assert response.framing == "length"
            assert response.body
            assert response["content-type"].startswith("text/")
        if "close" in response.connection:
            client.at_end(clean=True)
        else:
            assert lives(client)
    assert server.get().body == b"hello", "the server goes on"


@pytest.mark.parametrize(("path", "body"), [("/body-ignored", b"ignored"), ("/body-half-read", b"half")])
@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_what_the_application_leaves_of_a_body_is_not_the_next_request(
    server: Server, path: str, body: bytes, size: int
) -> None:
    with server.client() as client:
        response = ask(client, path, "POST", fields=(f"Content-Length: {size}",), body=b"GET /" + b"x" * (size - 5))
        assert response.body == body
        assert lives(client)


def test_a_generator_has_one_last_chunk(server: Server) -> None:
    with server.client() as client:
        client.send(b"GET /generator HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        raw = client.rest()
        assert raw.count(b"\r\n0\r\n\r\n") == 1
        assert raw.endswith(b"\r\n0\r\n\r\n")
