"""The tests of the protocol, of PEP 3333 and of deliveries over TLS, one case of each rule.

Each run is a pytest of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.encrypted import TLS
from harness.greenlets import GEVENT

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 400


RUNS = {
    # The one that is left out is of greenlets alone.
    "responses": [
        *("tests/protocol", "tests/wsgi"),
        "--deselect=tests/wsgi/test_files.py::test_a_file_object_of_gevent_s_arrives_whole",
    ],
    "deliveries": [
        *(f"tests/server/test_{name}.py" for name in ("delivery", "slow", "spill", "uploads")),
        # Its limit has no room for what is encrypted and waits, up to 64 KiB for each of its 300 clients.
        "--deselect=tests/server/test_spill.py::test_a_small_part_of_a_large_block_does_not_hold_the_block",
    ],
}


@pytest.mark.slow
@pytest.mark.skipif(TLS or GEVENT, reason="this is such a run")
@pytest.mark.parametrize("run", RUNS)
def test_all_is_the_same_over_tls(run):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *RUNS[run]]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment, "TAILRACE_TEST_TLS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout, done.stdout[-2000:]
