"""Runs tests of other files in a separate pytest process in another mode."""

import os
import subprocess

import pytest

from .pages import ROOT


def passes(command: list[str], variables: dict[str, str], deadline: float) -> None:
    """Fails unless the command, a pytest with these variables, passes every test and skips none within `deadline`
    seconds."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"not within {deadline:g} s:\n{(error.output or b'')[-5000:].decode(errors='replace')}")
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-20_000:]
    assert " passed" in said
    assert "skipped" not in said, said[-2000:]
