"""environ: which keys there are, of which types, and how bytes become text (PEP 3333, RFC 3875 section 4.1)."""

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


def test_environ_is_a_dict_whose_required_keys_are_native_strings(exchange, look) -> None:
    exchange.ask("/a/b?c=d")
    assert type(look.environ) is dict
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


# With greenlets wsgi.multithread is true: requests interleave whatever --max-greenlets is.
@pytest.mark.runs_with("threads", "tls")
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
            client.ask(b"GET /%d HTTP/1.1\r\nHost: a\r\nX-%d: y\r\n\r\n" % (number, number))
    first, second, third = look.environs
    assert first is not second
    assert "HTTP_X_0" not in third
    assert third["PATH_INFO"] == "/2"
    first["HTTP_X_9"] = "changed"
    exchange.ask()
    assert "HTTP_X_9" not in look.environ


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


def test_an_absent_content_type_is_absent_or_empty(exchange, look) -> None:
    exchange.ask()
    assert look.environ.get("CONTENT_TYPE", "") == ""
    assert look.environ.get("CONTENT_LENGTH", "") == ""


def test_a_chunked_request_claims_no_other_length_than_its_body(exchange, look) -> None:
    exchange.ask("/", "Transfer-Encoding: chunked", method="POST", body=b"5\r\nhello\r\n0\r\n\r\n")
    assert look.environ.get("CONTENT_LENGTH", "") in ("", "5")


def test_fields_with_underscores_are_kept_or_refused_on_demand(plain) -> None:
    look = Look()
    plain.serve(look, underscore_headers="keep").ask("/", "X_Real: mine")
    assert look.environ["HTTP_X_REAL"] == "mine"
    assert plain.serve(look, underscore_headers="refuse").ask("/", "X_Real: mine").status == 400
    assert len(look.environs) == 1


def test_the_scheme_is_that_of_the_option(plain) -> None:
    look = Look()
    plain.serve(look, url_scheme="https", trusted_proxies="none").ask("/", "X-Forwarded-Proto: http")
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
    # Another object if one with this text was there.
    assert sys.intern(name) is name
