"""The tests of the protocol and of PEP 3333 with requests on greenlets, one case of each rule.

Each run is a pytest of its own. Those of tests/wsgi serve inside the test's process: it is patched, and the server, the
application and the test share its hub, as in a program that embeds Tailrace. The last run is of tests of this
directory, with gevent's other event loop.
"""

import sys

import pytest
from harness.greenlets import GEVENT, run_patched
from harness.nested import passes

DEADLINE = 300

OTHER_LOOP = [f"tests/gevent/{name}" for name in ("test_waiting.py", "test_endings.py", "test_greenlet_forks.py")]
# gevent's waitpid() never returns if the loop has reaped the child and not reported it yet, also without Tailrace.
LOST_BY_LIBUV = f"{OTHER_LOOP[2]}::test_the_parent_goes_on_after_its_child_had_a_hub[multiprocessing]"


def arguments(*more: str) -> list[str]:
    return ["-q", "-p", "no:cacheprovider", *more]


RUNS = {
    "wsgi": (run_patched(*arguments("tests/wsgi")), {"TAILRACE_TEST_GEVENT": "1"}),
    "protocol": (run_patched(*arguments("tests/protocol")), {"TAILRACE_TEST_GEVENT": "1"}),
    "libuv": (
        [sys.executable, "-m", "pytest", *arguments(*OTHER_LOOP, f"--deselect={LOST_BY_LIBUV}")],
        {"GEVENT_LOOP": "libuv-cffi"},
    ),
}


@pytest.mark.skipif(GEVENT, reason="this is one of them")
@pytest.mark.parametrize("name", ["wsgi", "protocol", pytest.param("libuv", marks=pytest.mark.nightly)])
def test_greenlets_answer_as_threads_do(name):
    passes(*RUNS[name], DEADLINE)
