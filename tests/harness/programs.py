"""Programs in Python that a test runs to their end, each in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .pages import ROOT


def python(source: str, *arguments: object, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs this source; its status and what it wrote."""
    command = [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)


def printed(source: str, *arguments: object, directory: Path | None = None) -> str:
    """What a program that must succeed prints."""
    done = python(source, *arguments, directory=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tailrace(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end; its status and what it wrote. options: those of `subprocess.run`."""
    options = {"capture_output": True, "text": True, "timeout": 60, "check": False, **options}
    return subprocess.run([sys.executable, "-m", "tailrace", *arguments], **options)


def module_of(place: str) -> Callable[[], ModuleType]:
    """A fixture: a script of the repository as a module."""

    @pytest.fixture(scope="module")
    def loaded() -> ModuleType:
        spec = importlib.util.spec_from_file_location(Path(place).stem, ROOT / place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return loaded
