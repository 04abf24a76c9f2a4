import subprocess
import sys

import pytest


def allowed(before, requests):
    """The limits of a process that had those of `before`, and what it said."""
    source = (
        "import resource, logging\n"
        "logging.basicConfig(format='%(message)s')\n"
        "from penstock.greenlets import descriptors\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {before})\n"
        f"descriptors.allow({requests})\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    return tuple(map(int, done.stdout.split())), done.stderr


@pytest.mark.parametrize(
    ("before", "requests", "after"),
    [
        ((256, 1000), 100, (456, 1000)),
        ((256, 400), 100, (400, 400)),
        ((900, 1000), 100, (900, 1000)),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(before, requests, after):
    assert allowed(before, requests) == (after, "")


def test_too_low_a_limit_is_said():
    limits, said = allowed((256, 300), 100)
    assert limits == (300, 300)
    assert said == (
        "at most 300 files may be open, fewer than --max-greenlets 100 needs: clients beyond wait; raise the limit "
        "(`ulimit -Hn`, LimitNOFILE= of systemd), or lower --max-greenlets\n"
    )
