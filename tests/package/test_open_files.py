"""The limit of open files."""

from pathlib import Path

import pytest
from harness.programs import python

TESTS = Path(__file__).resolve().parents[1]


def allowed(before, connections=100, **chosen):
    """The limits of a process that had those of `before`, how many connections it may have, and what it said.

    connections: how many a worker keeps at most."""
    chosen = {"threads": 16, "max_greenlets": 50, **chosen}
    source = (
        "import resource, logging\n"
        "logging.basicConfig(format='%(message)s')\n"
        "from tailrace.worker import open_files\n"
        f"open_files.MAX_CONNECTIONS = {connections}\n"
        "from harness.settings import server_settings\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {before})\n"
        f"possible = open_files.allow(server_settings(**{chosen}))\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), possible)\n"
    )
    done = python(source, directory=TESTS)
    return tuple(map(int, done.stdout.split())), done.stderr


@pytest.mark.parametrize(("before", "after"), [((256, 1000), (372, 1000, 100)), ((900, 1000), (900, 1000, 100))])
def test_the_limit_is_raised_as_far_as_needed(before, after):
    assert allowed(before) == (after, "")


def test_greenlets_count_too():
    assert allowed((256, 1000), gevent=True) == ((406, 1000, 100), "")


@pytest.mark.parametrize("files", [{"static": (("/a", "/srv/a"),)}, {"overlay": "/srv/a"}])
def test_static_files_that_are_kept_open_count_too(files):
    assert allowed((256, 1000), **files) == ((884, 1000, 100), "")


def test_where_the_limit_cannot_be_raised_there_are_fewer_connections():
    # A quarter is left to the application.
    assert allowed((200, 200), 5_000) == ((200, 200, 150), "")


def test_too_low_a_limit_for_the_greenlets_is_said():
    limits, said = allowed((256, 300), gevent=True)
    assert limits == (300, 300, 100)
    assert said.startswith("the limit of 300 open files is too low for --max-greenlets 50: a worker keeps at most 100")
