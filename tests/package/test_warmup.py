"""`--warmup`: what the application is asked, and which answers are errors."""

import threading
from asyncio import CancelledError
from wsgiref.validate import validator

import pytest
from harness.settings import server_settings

from tailrace.cli.settings import from_keywords
from tailrace.errors import ConfigError, LoadError
from tailrace.worker.warmup import environ_of, warm_up


def asked(app, *targets, **options):
    warm_up(app, server_settings(warmup=tuple(targets), **options))


class App:
    """Answers with a status, and notes what it is asked."""

    def __init__(self, status="200 OK", body=b"page"):
        self.status, self.body = status, body
        self.environs, self.threads, self.closed = [], [], 0

    def __call__(self, environ, start_response):
        self.environs.append(environ)
        self.threads.append(threading.current_thread())
        return self._blocks(start_response)

    def _blocks(self, start_response):
        try:
            start_response(self.status, [("Content-Type", "text/plain")])
            yield self.body
            yield b"more"
        finally:
            self.closed += 1


def test_each_request_is_answered_whole_on_a_thread_of_its_own():
    app = App()
    asked(app, "/", "/cart?a=1", "/caf%C3%A9")
    assert [each["PATH_INFO"] for each in app.environs] == ["/", "/cart", "/caf\xc3\xa9"]
    assert app.environs[1]["QUERY_STRING"] == "a=1"
    assert app.closed == 3
    assert threading.current_thread() not in app.threads
    assert not any(each.is_alive() for each in app.threads)


def test_it_is_as_pep_3333_requires():
    app = App()
    asked(validator(app), "/a", "https://shop.example:8443/b?c")
    assert len(app.environs) == 2


def test_the_environ_of_a_path_and_of_a_url():
    settings = server_settings(root_path="/shop", url_scheme="https")
    names = ("SCRIPT_NAME", "PATH_INFO", "HTTP_HOST", "SERVER_NAME", "SERVER_PORT", "wsgi.url_scheme")
    seen = {
        target: tuple(environ_of(target, settings)[name] for name in names)
        for target in ("/shop/a", "/shop", "/shopping", "http://a.example:81/b", "http://a.example")
    }
    assert seen == {
        "/shop/a": ("/shop", "/a", "localhost", "localhost", "443", "https"),
        "/shop": ("/shop", "", "localhost", "localhost", "443", "https"),
        "/shopping": ("", "/shopping", "localhost", "localhost", "443", "https"),
        "http://a.example:81/b": ("", "/b", "a.example:81", "a.example", "81", "http"),
        "http://a.example": ("", "/", "a.example", "a.example", "80", "http"),
    }


def test_other_statuses_are_no_errors():
    asked(App("302 Found"), "/")
    asked(App("499 Odd"), "/")


def test_a_server_error_is_shown_with_its_body_and_ends_the_warm_up():
    app = App("503 Service Unavailable", b"<h1>\nno database</h1>" + b"x" * 10_000)
    with pytest.raises(
        LoadError, match=r"--warmup /a: the response is 503 Service Unavailable; .*no database"
    ) as caught:
        asked(app, "/a", "/b")
    assert len(str(caught.value)) < 500
    assert (len(app.environs), app.closed) == (1, 1)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt, CancelledError])
def test_an_exception_is_shown_with_the_traceback_of_the_application(kind):
    def app(environ, start_response):
        raise kind("no database")

    with pytest.raises(LoadError, match=r"--warmup /: the application raised .*no database") as caught:
        asked(app, "/")
    assert "in app" in caught.value.user_traceback
    assert "_answer" not in caught.value.user_traceback


@pytest.mark.parametrize(
    "app", [lambda environ, start_response: [b"a"], *map(App, (500, b"500 Internal Server Error", "", "up"))]
)
def test_an_application_that_starts_no_response_with_a_status_is_told_so(app):
    with pytest.raises(LoadError, match="did not call start_response with a status"):
        asked(app, "/")


def test_what_is_written_counts_and_an_exception_after_the_head_replaces_the_status():
    def app(environ, start_response):
        start_response("200 OK", [])(b"begun")
        start_response("500 Internal Server Error", [], (None, None, None))
        return [b" failed"]

    with pytest.raises(LoadError, match="500 Internal Server Error; its body begins: 'begun failed'"):
        asked(app, "/")


@pytest.mark.parametrize(
    "target",
    ["", "cart", "//a", "ftp://a/", "/a b", "http:///a", "/é", "http://a:65536/", "http://a:b/", "http://[::1/"],
)
def test_what_is_no_path_is_an_error(target):
    with pytest.raises(ConfigError, match="must be a path"):
        from_keywords({"warmup": [target]})
