"""The tests of the protocol, of PEP 3333 and of deliveries over TLS, one case of each rule.

Each run is a pytest of its own.
"""

from __future__ import annotations

import sys

import pytest
from harness.encrypted import TLS
from harness.greenlets import GEVENT
from harness.nested import passes

DEADLINE = 400


RUNS = {
    "responses": ["tests/protocol", "tests/wsgi"],
    "deliveries": [f"tests/server/test_{name}.py" for name in ("delivery", "slow", "spill", "uploads")],
}


@pytest.mark.skipif(TLS or GEVENT, reason="this is such a run")
@pytest.mark.parametrize("run", RUNS)
def test_all_is_the_same_over_tls(run):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *RUNS[run]]
    passes(command, {"TAILRACE_TEST_TLS": "1"}, DEADLINE)
