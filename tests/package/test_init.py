"""The public names of `tailrace`: importing it loads no server."""

import pytest
from harness.programs import printed

import tailrace

LOADED = """
import sys
before = set(sys.modules)
import tailrace
print(len(set(sys.modules) - before), *(name for name in sys.modules if name.startswith("tailrace")))
"""


def test_an_import_loads_few_modules():
    number, *ours = printed(LOADED).split()
    assert int(number) <= 25
    assert set(ours) == {"tailrace", "tailrace._tailrace", "tailrace.errors"}


def test_each_public_name_is_there():
    for name in tailrace.__all__:
        assert name in dir(tailrace)
        assert getattr(tailrace, name) is not None


def test_another_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'tailrace' has no attribute 'serve'"):
        tailrace.serve  # noqa: B018
