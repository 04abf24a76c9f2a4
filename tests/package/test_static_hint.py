"""The hint for a Django project whose static files nobody serves."""

import sys
from types import SimpleNamespace

import pytest
from harness.tools import need_module

from tailrace.worker import static_hint


@pytest.fixture
def project(monkeypatch):
    """Loads settings with these values."""

    def load(*modules, **values):
        settings = SimpleNamespace(configured=True, STATIC_URL="/static/", STATIC_ROOT=None)
        vars(settings).update(values)
        monkeypatch.setitem(sys.modules, "django.conf", SimpleNamespace(settings=settings))
        for module in ("whitenoise", "django.contrib.staticfiles.handlers"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        for module in modules:
            monkeypatch.setitem(sys.modules, module, SimpleNamespace())

    return load


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/static/", "/static/"),
        ("static/", "/static/"),
        ("/shop/assets", "/shop/assets/"),
        ("https://cdn.example/static/", None),
        ("//cdn.example/static/", None),
        ("/", None),
        (None, None),
    ],
)
def test_the_path_is_that_of_static_url(project, url, path):
    project(STATIC_URL=url)
    assert static_hint.static_path() == path


def test_without_a_project_and_where_something_serves_the_files_there_is_none(project, monkeypatch):
    for module in ("whitenoise", "django.contrib.staticfiles.handlers"):
        project(module)
        assert static_hint.static_path() is None
    project(configured=False)
    assert static_hint.static_path() is None
    monkeypatch.delitem(sys.modules, "django.conf")
    assert static_hint.static_path() is None


def test_the_hint_says_what_to_run(project, monkeypatch):
    need_module("django")
    urls = __import__("django.urls", fromlist=["urls"])

    def unknown(path):
        raise urls.Resolver404({"path": path})

    project()
    monkeypatch.setattr(urls, "resolve", unknown)
    assert static_hint.hint("/static/a.css") == (
        "404 from Django, which serves no static files in production. Set STATIC_ROOT, run `python manage.py "
        "collectstatic`, and start Tailrace with `--static /static=./staticfiles`. This is logged once per process."
    )
    project(STATIC_ROOT="/srv/shop/static", STATIC_URL="assets/")
    said = static_hint.hint("/assets/a.css")
    assert " Run `python manage.py collectstatic`" in said
    assert "`--static /assets=/srv/shop/static`" in said
    # A view of the project has answered it.
    monkeypatch.setattr(urls, "resolve", lambda _path: object())
    assert static_hint.hint("/static/a.css") is None
