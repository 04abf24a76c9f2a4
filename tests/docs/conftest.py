"""What the manual's code imports is forgotten after each test: other tests have modules of the same names."""

import sys

import pytest
from harness.pages import ROOT


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch):
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    kept = (sys.prefix, sys.base_prefix, str(ROOT / "tailrace"), str(ROOT / "tests/harness"))
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and not file.startswith(kept):
            del sys.modules[name]
