"""What is said of the GIL under free-threaded Python. The interpreter is played: its flag, and its warning."""

import sys
import warnings

import pytest
from harness.settings import server_settings

from tailrace.cli.load import load
from tailrace.system import gil
from tailrace.worker.announce import announce

TURNS_IT_ON = """
import sys, warnings
sys._is_gil_enabled = lambda: True
warnings.warn(
    "The global interpreter lock (GIL) has been enabled to load module 'old_driver', which has not declared that it "
    "can run safely without the GIL.", RuntimeWarning
)
def app(environ, start_response): pass
"""


@pytest.fixture
def free_threaded(monkeypatch):
    monkeypatch.setattr(gil, "IS_FREE_THREADED", True)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


def test_an_import_that_turns_the_gil_on_is_named_once(free_threaded, modules, caplog):
    modules(shop=TURNS_IT_ON)
    shown = warnings.showwarning
    with pytest.warns(RuntimeWarning, match="old_driver"):
        load("shop:app")
    (message,) = caplog.messages
    assert message.startswith("the GIL is on again: old_driver does not support free-threaded Python; ")
    assert warnings.showwarning is shown
    modules(other="def app(environ, start_response): pass")
    load("other:app")
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("is_on", [False, True])
def test_the_start_line_says_when_the_gil_is_off(is_on, free_threaded, monkeypatch, caplog):
    caplog.set_level("INFO", "tailrace")
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: is_on)
    announce(server_settings(), print, [], 2)
    assert caplog.messages[0].endswith("with 2 workers" + ", without the GIL" * (not is_on))
