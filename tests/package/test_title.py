"""Titles of processes and names of threads."""

import importlib.util

import pytest
from harness.programs import printed


def test_without_setproctitle_the_short_name_tells_the_role():
    source = (
        "import sys\n"
        "sys.modules['setproctitle'] = None\n"
        "from tailrace.system import title\n"
        "for role in ('master', 'worker 12'):\n"
        "    title.set_title(role, 'app:app')\n"
        "    print(open('/proc/self/comm').read(), end='')\n"
    )
    assert printed(source) == "tailrace-master\ntailrace-w12\n"


@pytest.mark.skipif(not importlib.util.find_spec("setproctitle"), reason="the extra `title` is not installed")
def test_with_setproctitle_ps_shows_role_and_application():
    source = (
        "from tailrace.system import title\n"
        "title.set_title('worker 1', 'app:app')\n"
        "print(open('/proc/self/cmdline', 'rb').read().rstrip(b'\\0').decode())\n"
    )
    assert printed(source) == "tailrace: worker 1 [app:app]\n"
