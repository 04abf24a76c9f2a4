"""Patching the standard library for gevent, and when it is refused."""

import logging
import sys
import textwrap

import pytest
from harness.programs import python

from tailrace.errors import ConfigError
from tailrace.greenlets import patch


def run(source, tmp_path):
    """What a fresh interpreter logs and prints."""
    source = "import logging\nlogging.basicConfig(format='%(levelname)s %(message)s')\n" + textwrap.dedent(source)
    done = python(source, directory=tmp_path)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GEVENT_LOOP", "foo", "choose from libev-cext, libev-cffi, libuv-cffi, libuv, or write module.class"),
        ("GEVENT_RESOLVER", "foo", "choose from ares, thread, block, dnspython, or write module.class"),
        ("GEVENT_MAX_BLOCKING_TIME", "foo", "could not convert string to float: 'foo'"),
        ("GEVENT_LOOP", "libuv", ""),
    ],
)
def test_a_variable_that_gevent_does_not_understand_is_one_line(tmp_path, monkeypatch, variable, value, said):
    monkeypatch.setenv(variable, value)
    source = """
        from tailrace.greenlets import patch
        try:
            patch.apply()
            print("patched")
        except patch.ConfigError as error:
            print(error)
        """
    assert run(source, tmp_path) == (f"{variable} = {value!r}: {said}\n" if said else "patched\n")


def test_a_free_threaded_python_is_refused(monkeypatch):
    monkeypatch.setattr(patch.gil, "IS_FREE_THREADED", True)
    with pytest.raises(ConfigError, match="free-threaded"):
        patch.check()


def test_without_gevent_the_remedy_is_named(tmp_path):
    said = run(
        """
        import importlib.machinery
        real = importlib.machinery.PathFinder.find_spec
        importlib.machinery.PathFinder.find_spec = classmethod(
            lambda cls, name, *rest: None if name.partition('.')[0] == 'gevent' else real(name, *rest)
        )
        from tailrace.greenlets import patch
        for what in (lambda: patch.check(), patch.apply):
            try:
                what()
            except Exception as error:
                print(type(error).__name__, error)
        """,
        tmp_path,
    )
    assert said == (
        "ConfigError --gevent needs gevent, which is not installed; `pip install 'tailrace[gevent]'`\n"
        "ConfigError --gevent needs gevent, which cannot be imported: No module named 'gevent'; "
        "`pip install 'tailrace[gevent]'`\n"
    )


def test_the_master_imports_nothing_of_gevent(tmp_path):
    said = run(
        """
        import sys
        import tailrace.command
        from tailrace.greenlets import patch
        patch.check()
        print([name for name in sys.modules if name.partition('.')[0] in ('gevent', 'greenlet', 'ssl')])
        """,
        tmp_path,
    )
    assert said == "[]\n"


def test_it_patches_and_says_what_was_imported_too_early(tmp_path):
    said = run(
        """
        import ssl
        from tailrace.greenlets import patch
        patch.apply()
        import time, gevent
        print(time.sleep is gevent.sleep, gevent.monkey.is_module_patched("socket"))
        """,
        tmp_path,
    )
    first, *_ = said.splitlines()[1:]
    assert said.splitlines()[0] == "True True"
    assert first == (
        "WARNING --gevent: ssl was imported before the standard library is patched, so calls to them may block the "
        "hub; make the module of --hooks, or sitecustomize, import them later"
    )


def test_the_command_imports_nothing_that_is_to_be_patched_first(tmp_path):
    assert run("import tailrace.command\nfrom tailrace.greenlets import patch\npatch.apply()\n", tmp_path) == ""


def test_the_warnings_of_gevent_go_to_the_log(monkeypatch, caplog):
    import warnings

    import gevent.monkey

    def complains():
        warnings.warn("too late", gevent.monkey.MonkeyPatchWarning, stacklevel=2)

    monkeypatch.setattr(gevent.monkey, "patch_all", complains)
    for name in patch._SUSPECTS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    patch.apply()
    assert caplog.record_tuples == [("tailrace", logging.WARNING, "--gevent: too late")]
