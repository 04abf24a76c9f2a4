"""environ: which keys there are, of which types, and how bytes become text (PEP 3333, RFC 3875 section 4.1)."""

from __future__ import annotations

import io
import sys

import pytest
from harness.encrypted import SCHEME

TEXT = [("Content-Type", "text/plain"), ("Content-Length", "2")]


class Look:
    """An application that keeps what it was given."""

    def __init__(self) -> None:
        self.environs: list[dict] = []

    def __call__(self, environ, start_response):
        self.environs.append(environ)
        start_response("200 OK", TEXT)
        return [b"ok"]

    @property
    def environ(self) -> dict:
        return self.environs[-1]


@pytest.fixture
def look(exchange) -> Look:
    look = Look()
    exchange.serve(look)
    return look


def test_environ_is_a_real_dict(exchange, look) -> None:
    assert exchange.ask().status == 200
    assert type(look.environ) is dict


def test_the_required_keys_are_native_strings(exchange, look) -> None:
    exchange.ask("/a/b?c=d")
    expected = {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/a/b",
        "QUERY_STRING": "c=d",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": exchange.address.host,
        "SERVER_PORT": str(exchange.address.port),
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": "test",
        "wsgi.url_scheme": SCHEME,
    }
    got = {key: look.environ.get(key) for key in expected}
    assert got == expected
    for key, value in look.environ.items():
        assert type(key) is str
        if "." not in key:
            assert type(value) is str, key


def test_the_wsgi_keys_have_their_types(exchange, look) -> None:
    exchange.ask()
    environ = look.environ
    assert environ["wsgi.version"] == (1, 0)
    assert type(environ["wsgi.version"]) is tuple
    assert environ["wsgi.multithread"] is True
    assert environ["wsgi.multiprocess"] is False
    assert environ["wsgi.run_once"] is False
    assert environ["wsgi.input_terminated"] is True
    for method in ("read", "readline", "readlines", "__iter__"):
        assert hasattr(environ["wsgi.input"], method)
    for method in ("write", "writelines", "flush"):
        assert hasattr(environ["wsgi.errors"], method)


def test_one_thread_is_not_multithread(plain) -> None:
    look = Look()
    plain.serve(look, threads=1).ask()
    assert look.environ["wsgi.multithread"] is False


def test_a_file_wrapper_is_offered(plain) -> None:
    look = Look()
    plain.serve(look).ask()
    assert callable(look.environ["wsgi.file_wrapper"])
    assert list(look.environ["wsgi.file_wrapper"](io.BytesIO(b"x" * 10), 4)), "it is an iterable of its own"


def test_each_request_has_its_own_environ(exchange, look) -> None:
    with exchange.client() as client:
        for number in range(3):
            client.send(b"GET /%d HTTP/1.1\r\nHost: a\r\nX-%d: y\r\n\r\n" % (number, number))
            client.response()
    first, second, third = look.environs
    assert first is not second
    assert "HTTP_X_0" not in third
    assert third["PATH_INFO"] == "/2"
    first["HTTP_X_9"] = "changed"
    exchange.ask()
    assert "HTTP_X_9" not in look.environ


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("/?", "/", ""),
        ("/a%20b", "/a b", ""),
        ("/a+b", "/a+b", ""),
        ("/%2525", "/%25", ""),
        ("/%2e%2e/x", "/../x", ""),
        ("/caf%C3%A9", "/caf\u00c3\u00a9", ""),
        ("/%E2%82%AC", "/\u00e2\u0082\u00ac", ""),
        ("/%FF%00%7F", "/\u00ff\0\x7f", ""),
        ("/a%2Fb%3Fc", "/a/b?c", ""),
        ("/x?a=%C3%A9&b=%20+", "/x", "a=%C3%A9&b=%20+"),
        ("/x?y?z", "/x", "y?z"),
    ],
)
def test_the_path_is_decoded_once_into_latin_1(exchange, look, target, path, query) -> None:
    exchange.ask(target)
    assert look.environ["PATH_INFO"] == path
    assert look.environ["QUERY_STRING"] == query
    assert path.encode("latin-1").decode("latin-1") == path


def test_every_octet_survives_the_path(exchange, look) -> None:
    for octet in range(256):
        exchange.ask(f"/%{octet:02X}")
        assert look.environ["PATH_INFO"] == "/" + chr(octet)


@pytest.mark.parametrize(
    ("target", "script", "path"),
    [
        ("/app", "/app", ""),
        ("/app/", "/app", "/"),
        ("/app/x", "/app", "/x"),
        ("/application", None, None),
        ("/other", None, None),
        ("/app/app", "/app", "/app"),
    ],
)
def test_the_root_path_goes_to_script_name(exchange, target, script, path) -> None:
    look = Look()
    exchange.serve(look, root_path="/app")
    response = exchange.ask(target)
    if script is None:
        # Outside of its mount point: handed on with SCRIPT_NAME all the same, and never cut in the middle.
        assert response.status == 200
        assert (look.environ["SCRIPT_NAME"], look.environ["PATH_INFO"]) == ("/app", target)
    else:
        assert (look.environ["SCRIPT_NAME"], look.environ["PATH_INFO"]) == (script, path)


def test_fields_become_http_keys(exchange, look) -> None:
    exchange.ask("/", "X-Some-Thing: a", "Accept: */*", "x-lower: b", "DNT: 1")
    environ = look.environ
    assert (environ["HTTP_X_SOME_THING"], environ["HTTP_ACCEPT"], environ["HTTP_X_LOWER"], environ["HTTP_DNT"]) == (
        "a",
        "*/*",
        "b",
        "1",
    )


def test_content_type_and_length_have_no_prefix(exchange, look) -> None:
    exchange.ask("/", "Content-Type: text/x", method="POST", body=b"hello")
    assert (look.environ["CONTENT_TYPE"], look.environ["CONTENT_LENGTH"]) == ("text/x", "5")
    assert "HTTP_CONTENT_TYPE" not in look.environ
    assert "HTTP_CONTENT_LENGTH" not in look.environ


def test_an_absent_content_type_is_absent_or_empty(exchange, look) -> None:
    exchange.ask()
    assert look.environ.get("CONTENT_TYPE", "") == ""
    assert look.environ.get("CONTENT_LENGTH", "") == ""


def test_a_chunked_request_claims_no_other_length_than_its_body(exchange, look) -> None:
    exchange.ask("/", "Transfer-Encoding: chunked", method="POST", body=b"5\r\nhello\r\n0\r\n\r\n")
    assert look.environ.get("CONTENT_LENGTH", "") in ("", "5")


def test_field_values_are_latin_1_text(exchange, look) -> None:
    exchange.ask("/", "X-A: caf\u00e9 \u00ff")
    assert look.environ["HTTP_X_A"] == "caf\u00e9 \u00ff"


def test_repeated_fields_are_joined_and_cookies_with_semicolons(exchange, look) -> None:
    exchange.ask("/", "X-A: 1", "Cookie: a=1", "X-A: 2", "Cookie: b=2", "x-a: 3")
    assert look.environ["HTTP_X_A"].replace(" ", "") == "1,2,3"
    assert look.environ["HTTP_COOKIE"] == "a=1; b=2"


def test_fields_with_underscores_are_dropped(exchange, look) -> None:
    exchange.ask(
        "/", "X-Real: good", "X_Real: evil", "_: x", "__proto__: x", "Content_Length: 5", "REMOTE_ADDR: 6.6.6.6"
    )
    assert look.environ["HTTP_X_REAL"] == "good"
    assert not [key for key in look.environ if "PROTO__" in key]
    assert look.environ["REMOTE_ADDR"] == "127.0.0.1"
    assert "HTTP_REMOTE_ADDR" not in look.environ


def test_fields_with_underscores_are_kept_on_demand(plain) -> None:
    look = Look()
    plain.serve(look, underscore_headers="keep").ask("/", "X_Real: mine")
    assert look.environ["HTTP_X_REAL"] == "mine"


def test_fields_with_underscores_are_refused_on_demand(plain) -> None:
    look = Look()
    assert plain.serve(look, underscore_headers="refuse").ask("/", "X_Real: mine").status == 400
    assert look.environs == []


@pytest.mark.parametrize("name", ["Proxy", "PROXY", "proxy"])
def test_no_client_can_set_http_proxy(exchange, look, name) -> None:
    exchange.ask("/", f"{name}: http://evil")
    assert "HTTP_PROXY" not in look.environ


def test_the_scheme_is_that_of_the_option(plain) -> None:
    look = Look()
    plain.serve(look, url_scheme="https").ask("/", "X-Forwarded-Proto: http")
    assert look.environ["wsgi.url_scheme"] == "https"


def test_environ_holds_nothing_back_after_the_request(plain) -> None:
    class Marker:
        pass

    import gc
    import weakref

    markers = []

    def app(environ, start_response):
        environ["test.marker"] = marker = Marker()
        markers.append(weakref.ref(marker))
        start_response("200 OK", TEXT)
        return [b"ok"]

    plain.serve(app)
    for _ in range(20):
        plain.ask()
    gc.collect()
    # The last one may be let go a moment after its response.
    assert sum(reference() is not None for reference in markers) <= 1


def test_unknown_field_names_are_not_interned(plain) -> None:
    look = Look()
    plain.serve(look)
    for number in range(300):
        plain.ask("/", f"X-Invented-{number}: y")
        look.environs.clear()
    name = "HTTP_X_INVENTED_" + str(int("299"))
    assert sys.getrefcount(sys.intern(name)) < 10
