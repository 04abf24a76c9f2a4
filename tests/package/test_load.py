"""Loading `MODULE:CALLABLE`, and the messages if that fails."""

import re
import sys
from pathlib import Path

import pytest

from tailrace.cli.load import check, load
from tailrace.errors import LoadError

APP = """
def app(environ, start_response):
    return [b"app"]
"""


def called(application):
    return application({}, None)


def refusal(specification, **options):
    with pytest.raises(LoadError) as caught:
        load(specification, **options)
    assert "\n" not in str(caught.value), "one line"
    return caught.value


def test_module_and_callable(modules):
    modules(shop=APP)
    assert called(load("shop:app")) == [b"app"]
    assert called(load(" shop : app ")) == [b"app"]


def test_a_bare_module_means_application_or_app(modules):
    modules(shop=APP, both=APP + "application = lambda environ, start_response: [b'application']")
    assert called(load("shop")) == [b"app"]
    assert called(load("both")) == [b"application"]


def test_dotted_modules_and_attributes_need_no_installation(modules):
    source = """
        class Config:
            class inner:
                @staticmethod
                def app(environ, start_response):
                    return [b"inner"]
        config = Config()
        """
    modules({"branch/__init__": "", "branch/wsgi": source})
    assert called(load("branch.wsgi:config.inner.app")) == [b"inner"]


def test_a_factory_by_flag_or_by_call(modules):
    modules(
        shop="""
        def create_app(name="plain", *, suffix=""):
            return lambda environ, start_response: [(name + suffix).encode()]
        """
    )
    assert called(load("shop:create_app", factory=True)) == [b"plain"]
    assert called(load("shop:create_app()")) == [b"plain"]
    assert called(load("shop:create_app('test', suffix='!')")) == [b"test!"]


@pytest.mark.parametrize("path", ["./hello.py", "hello.py", "hello.py:app", "sub/../hello.py:app"])
def test_a_file(modules, path):
    directory = modules(hello=APP)
    (directory / "sub").mkdir()
    assert called(load(path)) == [b"app"]


def test_a_file_is_one_module_with_its_importable_self(modules):
    modules(hello=APP + "import hello as again\nsame = app is again.__dict__.get('app')")
    load("./hello.py")
    assert sys.modules["hello"].same


def test_a_wsgi_file(modules):
    directory = modules()
    (directory / "shop-live.wsgi").write_text(APP.replace("app(", "application("))
    assert called(load("./shop-live.wsgi")) == [b"app"]


def test_a_file_in_a_package_may_import_relatively(modules):
    modules({"pack/__init__": "", "pack/other": "value = 1", "pack/wsgi": "from .other import value\n" + APP})
    assert called(load("pack/wsgi.py:app")) == [b"app"]


def test_a_file_named_like_a_standard_module_does_not_hide_it(modules):
    import json

    modules(json=APP)
    assert called(load("./json.py")) == [b"app"]
    assert sys.modules["json"] is json


def test_a_class_that_follows_the_standard_is_an_application(modules):
    modules(
        shop="""
        class App:
            def __init__(self, environ, start_response): pass
            def __iter__(self): yield b"class"
        """
    )
    assert list(called(load("shop:App"))) == [b"class"]


def test_a_decorator_that_hides_the_signature_is_believed():
    import functools

    def view(request):
        return []

    @functools.wraps(view)
    def application(*arguments):
        return []

    check(application, "x:application")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        ":",
        "shop:",
        ":app",
        "my-shop:app",
        "shop app",
        "a..b",
        ".a",
        "shop:app+1",
        "shop:f(x)",
        "shop:f(*[1])",
        "shop:app[0]",
    ],
)
def test_what_is_no_specification_is_refused(modules, wrong):
    modules(shop=APP)
    message = str(refusal(wrong))
    assert re.search(r"write module:callable|neither the name of a module|after the colon", message), message


MYSITE = {"mysite/__init__": "from .core import app", "mysite/core": APP, "mysite/wsgi": APP, "flat": APP}
SHOP = """
from functools import partial
from json import dump
class Thing:
    def __call__(self, environ, start_response): return []
class config:
    application = None
server = Thing()
def wsgi(environ, start_response): return []
def create_app(): return wsgi
def one(request): return request
text = "text"
application = None
"""


@pytest.mark.parametrize(
    ("specification", "said"),
    [
        ("shp:app", r"no module named 'shp' in /.*; did you mean shop\?$"),
        ("zzz:app", r"nor installed for /\S+; start in the directory that contains it, name that .* --chdir"),
        ("deep:app", "but src/deep.py exists; add --chdir src$"),
        ("mysite.wgsi:app", r"^no module named 'mysite.wgsi'; did you mean mysite.wsgi\?$"),
        ("mysite.app", r"did you mean mysite:app\?$"),
        ("flat.app", r"did you mean flat:app\?$"),
        ("plain", r"neither `application` nor `app`; did you mean plain\.wsgi\?$"),
        ("./shp.py", r"^./shp.py: no such file; did you mean shop.py\?$"),
        ("./mysite", "is a directory"),
        ("manage:app", r"sys\.exit\(2\)"),
        ("shop:app", "shop has no 'app'; these could be the application: shop:server, shop:wsgi, shop:create_app"),
        ("shop:config.aplication", r"^shop:config has no 'aplication'; did you mean application\?$"),
        ("shop:text", "a str is not callable"),
        ("shop", "None is not callable"),
        ("shop:create_app", r"add --factory or write the call: shop:create_app\(\)$"),
        ("shop:one", "takes two arguments"),
        ("shop:wsgi()", "cannot be called without arguments"),
        ("--factory shop:wsgi", "omit --factory if"),
        ("--factory shop:text", "cannot be a factory"),
    ],
)
def test_what_cannot_be_loaded_is_one_line_with_the_remedy(modules, specification, said):
    modules(
        {**MYSITE, "plain/__init__": "", "plain/wsgi": APP, "src/deep": APP}, shop=SHOP, manage="raise SystemExit(2)"
    )
    flag, _, name = specification.rpartition(" ")
    assert re.search(said, str(refusal(name, factory=bool(flag))))


def test_an_import_error_inside_the_application_keeps_its_traceback(modules):
    directory = modules(shop="import inner\n" + APP, inner="def f():\n    import absent_library\nf()\n")
    error = refusal("shop:app")
    assert str(error) == "importing shop failed: ModuleNotFoundError: No module named 'absent_library'"
    assert "import absent_library" in error.user_traceback
    assert str(directory / "inner.py") in error.user_traceback
    assert "load.py" not in error.user_traceback
    assert "importlib" not in error.user_traceback


def test_a_module_that_fails_to_import_itself_is_not_mistaken_for_a_wrong_path(modules):
    modules(shop="import shop.settings\n" + APP)
    error = refusal("shop:app")
    assert str(error).startswith("importing shop failed: ModuleNotFoundError: No module named 'shop.settings'")
    assert error.user_traceback


@pytest.mark.parametrize(
    ("source", "summary"),
    [
        ("def app(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise RuntimeError('first\\nlast line')\n", "last line"),
    ],
)
def test_other_failures_inside_the_application_keep_their_traceback(modules, source, summary):
    modules(shop=source)
    for specification in ("shop:app", "./shop.py"):
        error = refusal(specification)
        assert summary in str(error)
        assert "shop.py" in error.user_traceback
        assert "tailrace/cli/" not in error.user_traceback


@pytest.mark.parametrize(
    "source",
    [
        "async def app(scope, receive, send): ...",
        "class A:\n    async def __call__(self, scope, receive, send): ...\napp = A()",
        "class A:\n    def __call__(self, scope, receive, send): ...\napp = A()",
        "def app(scope, receive, send): ...",
    ],
)
def test_an_asgi_application_is_recognized(modules, source):
    modules(shop=source)
    assert "is an ASGI application" in str(refusal("shop:app"))


def test_a_factory_that_fails_keeps_its_traceback(modules):
    modules(shop="def create_app(mode='x'):\n    return {}[mode]\n")
    error = refusal("shop:create_app('absent')")
    assert str(error) == "calling shop:create_app('absent') failed: KeyError: 'absent'"
    assert "in create_app" in error.user_traceback
    assert "load.py" not in error.user_traceback


def test_proxies_that_raise_on_attribute_access_do_not_prevent_a_suggestion(tmp_path, monkeypatch):
    (tmp_path / "shop_with_proxies.py").write_text(
        "from flask import Flask, g, request, session\napp = Flask(__name__)\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError, match=r"shop_with_proxies has no 'ap'; .*shop_with_proxies:app"):
        load("shop_with_proxies:ap")


def test_the_file_that_the_readme_shows_is_an_application(modules):
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    modules(hello=readme.partition("curl http://127.0.0.1:8000`:\n\n```python\n")[2].partition("```")[0])
    application = load("./hello.py")
    assert application({}, lambda status, fields: None) == [b"Hello, World!\n"]
