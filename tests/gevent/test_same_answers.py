"""The tests of the protocol and of PEP 3333 with requests on greenlets, one case of each rule.

Each run is a pytest of its own, all at the same time. Those of tests/wsgi serve inside the test's process: it is
patched, and the server, the application and the test share its hub, as in a program that embeds Tailrace. The last run
is of tests of this directory, with gevent's other event loop.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from harness.greenlets import GEVENT, run_patched

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 300

# Promises about threads, which greenlets do not keep, each with what becomes of it instead.
OTHERWISE = (
    # wsgi.multithread is true: requests interleave whatever --max-greenlets is.
    "wsgi/test_environ.py::test_one_thread_is_not_multithread",
    # Reading a pipe blocks the hub, on which the one who writes into it waits for its turn.
    "wsgi/test_files.py::test_a_pipe_is_read_to_its_end",
    # A second greenlet that reads gets an error: test_two_greenlets_cannot_read_one_body.
    "wsgi/test_stream_rest.py::test_the_properties_of_a_stream_can_be_read_while_a_thread_reads",
)
OTHER_LOOP = [f"tests/gevent/{name}" for name in ("test_waiting.py", "test_endings.py", "test_greenlet_forks.py")]
LOST_BY_LIBUV = (
    # gevent's waitpid() never returns if the loop has reaped the child and not reported it yet, also without Tailrace.
    "gevent/test_greenlet_forks.py::test_the_parent_goes_on_after_its_child_had_a_hub[multiprocessing]",
)


def arguments(*more: str) -> list[str]:
    return ["-q", "-p", "no:cacheprovider", *more]


def deselected(tests: Iterable[str]) -> list[str]:
    return [f"--deselect=tests/{test}" for test in tests]


RUNS = {
    "wsgi": (
        # On the main thread's hub a KeyboardInterrupt is the program's, also when a request raises it: gevent's rule.
        run_patched(*arguments("tests/wsgi", *deselected(OTHERWISE), "-k", "not KeyboardInterrupt")),
        {"TAILRACE_TEST_GEVENT": "1"},
    ),
    "protocol": (run_patched(*arguments("tests/protocol")), {"TAILRACE_TEST_GEVENT": "1"}),
    "libuv": (
        [sys.executable, "-m", "pytest", *arguments(*OTHER_LOOP, *deselected(LOST_BY_LIBUV))],
        {"GEVENT_LOOP": "libuv-cffi"},
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All of them, started."""
    if GEVENT:
        pytest.skip("this is one of them")
    started = {}
    for name, (command, variables) in RUNS.items():
        log = tmp_path_factory.mktemp(name) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables}, stdout=file, stderr=file)
        started[name] = (process, log)
    yield started
    for process, _ in started.values():
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_greenlets_answer_as_threads_do(runs, name):
    process, log = runs[name]
    try:
        status = process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{name} hangs:\n{log.read_text()[-5000:]}")
    said = log.read_text()
    assert status == 0, said[-20_000:]
    assert " passed" in said
    assert "skipped" not in said, said[-2000:]
