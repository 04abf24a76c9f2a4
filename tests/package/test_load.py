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


def test_dotted_modules_and_attributes(modules):
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


def test_a_project_directory_is_found_without_installing_it(modules):
    modules({"mysite/__init__": "", "mysite/wsgi": "application = lambda environ, start_response: [b'django']"})
    assert called(load("mysite.wsgi")) == [b"django"]


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


def test_a_missing_module_names_the_nearest(modules):
    directory = modules(shopping=APP)
    message = str(refusal("shoping:app"))
    assert f"no module named 'shoping' in {directory}" in message
    assert message.endswith("did you mean shopping?")


def test_a_missing_module_without_a_near_one_says_where_to_look(modules):
    modules()
    message = str(refusal("zzz:app"))
    assert "--chdir" in message
    assert sys.executable in message


def test_a_missing_module_in_a_subdirectory_is_pointed_at(modules):
    modules({"src/shop": APP})
    assert str(refusal("shop:app")).endswith("but src/shop.py exists; add --chdir src")


def test_a_missing_submodule_names_the_nearest(modules):
    modules({"mysite/__init__": "", "mysite/wsgi": APP})
    assert str(refusal("mysite.wgsi:app")) == "no module named 'mysite.wgsi'; did you mean mysite.wsgi?"


def test_a_dot_in_place_of_the_colon_is_noticed(modules):
    modules({"mysite/__init__": "from .core import app", "mysite/core": APP, "flat": APP})
    assert str(refusal("mysite.app")).endswith("did you mean mysite:app?")
    assert str(refusal("flat.app")).endswith("did you mean flat:app?")


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


def test_a_script_that_exits_is_recognised(modules):
    modules(manage="import sys\nsys.exit(2)\n")
    assert "sys.exit(2)" in str(refusal("manage:app"))


def test_a_missing_attribute_lists_what_looks_like_an_application(modules):
    modules(
        shop="""
        from functools import partial
        from json import dump
        class Thing:
            def __call__(self, environ, start_response): return []
        server = Thing()
        def wsgi(environ, start_response): return []
        def create_app(): return wsgi
        def helper(one): return one
        value = 3
        """
    )
    message = str(refusal("shop:app"))
    assert message == ("shop has no 'app'; these could be the application: shop:server, shop:wsgi, shop:create_app()")
    assert "shop:wsgi" in str(refusal("shop"))


def test_a_missing_deeper_attribute_names_the_nearest(modules):
    modules(shop="class config:\n    application = None\n")
    assert str(refusal("shop:config.aplication")) == "shop:config has no 'aplication'; did you mean application?"


@pytest.mark.parametrize(
    "source",
    [
        "async def app(scope, receive, send): ...",
        "class A:\n    async def __call__(self, scope, receive, send): ...\napp = A()",
        "class A:\n    def __call__(self, scope, receive, send): ...\napp = A()",
        "def app(scope, receive, send): ...",
    ],
)
def test_an_asgi_application_is_recognised(modules, source):
    modules(shop=source)
    assert "is an ASGI application" in str(refusal("shop:app"))


def test_what_is_not_callable_is_refused(modules):
    modules(shop="app = 'text'\napplication = None")
    assert "a str is not callable" in str(refusal("shop:app"))
    assert "None is not callable" in str(refusal("shop"))
    assert "cannot be a factory" in str(refusal("shop:app", factory=True))


def test_a_factory_that_was_not_called_is_recognised(modules):
    modules(shop="def create_app(): ...\ndef one(request): ...")
    assert str(refusal("shop:create_app")).endswith("add --factory or write the call: shop:create_app()")
    assert "takes two arguments" in str(refusal("shop:one"))


def test_an_application_that_was_named_a_factory_is_recognised(modules):
    modules(shop=APP)
    assert "omit --factory if" in str(refusal("shop:app", factory=True))
    assert "cannot be called without arguments" in str(refusal("shop:app()"))


def test_a_factory_that_fails_keeps_its_traceback(modules):
    modules(shop="def create_app(mode='x'):\n    return {}[mode]\n")
    error = refusal("shop:create_app('absent')")
    assert str(error) == "calling shop:create_app('absent') failed: KeyError: 'absent'"
    assert "in create_app" in error.user_traceback
    assert "load.py" not in error.user_traceback


def test_a_missing_file_names_the_nearest(modules):
    directory = modules(hello=APP)
    assert str(refusal("./helo.py")) == "./helo.py: no such file; did you mean hello.py?"
    (directory / "folder").mkdir()
    assert "is a directory" in str(refusal("./folder"))


def test_proxies_that_raise_on_attribute_access_do_not_prevent_a_suggestion(tmp_path, monkeypatch):
    (tmp_path / "shop_with_proxies.py").write_text(
        "from flask import Flask, g, request, session\napp = Flask(__name__)\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError, match=r"shop_with_proxies has no 'ap'; .*shop_with_proxies:app"):
        load("shop_with_proxies:ap")


def test_a_package_with_a_module_for_wsgi_is_answered_with_it(modules):
    modules({"mysite/__init__": "", "mysite/wsgi": "def application(environ, start_response): ..."})
    with pytest.raises(LoadError, match=r"neither `application` nor `app`; did you mean mysite\.wsgi\?$"):
        load("mysite")


def test_the_file_that_the_readme_shows_is_an_application(modules):
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    modules(hello=readme.partition("curl http://127.0.0.1:8000`:\n\n```python\n")[2].partition("```")[0])
    application = load("./hello.py")
    assert application({}, lambda status, fields: None) == [b"Hello, World!\n"]
