"""Missing tools: the test is skipped, or fails where CI=true says that all tools are installed."""

import importlib
import importlib.util
import os
import shutil
from types import ModuleType

import pytest

# For what the server does only with `tailrace[tools]`: its commands, and the names of other servers' options.
with_tools = pytest.mark.skipif(
    importlib.util.find_spec("tailrace_tools") is None, reason="tailrace_tools is not installed"
)


def missing(reason: str) -> None:
    """Skips the running test with `reason`; fails it when the environment says CI=true."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason} (CI=true: nothing may be skipped)", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def need_tool(name: str) -> str:
    """The path of an executable; administrators' directories are searched too."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        missing(f"{name} is not installed")
    assert path is not None
    return path


def need_module(name: str) -> ModuleType:
    """An importable module that is no requirement of the server itself."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing(f"the Python module {name} is not installed: {error}")
        raise
