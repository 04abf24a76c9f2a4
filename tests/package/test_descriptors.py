"""Standard descriptors that are closed at the start."""

import subprocess
import sys

import pytest
from harness.programs import printed


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_descriptors_are_opened(closed):
    source = (
        "import os, sys\n"
        "from tailrace.system import descriptors\n"
        f"[os.close(number) for number in {closed}]\n"
        "descriptors.open_standard()\n"
        f"told = [(os.readlink(f'/proc/self/fd/{{number}}'), os.get_inheritable(number)) for number in {closed}]\n"
        f"assert told == [('/dev/null', True)] * {len(closed)}, told\n"
        "assert os.open('/', os.O_RDONLY) > 2\n"
    )
    printed(source)


def test_python_has_streams_for_those_that_were_closed():
    source = (
        "import sys\n"
        "assert sys.stdin is None and sys.stdout is None and sys.stderr is None\n"
        "from tailrace.system import descriptors\n"
        "descriptors.open_standard_streams()\n"
        "print('to nobody', flush=True)\n"
        "sys.stderr.write('to nobody')\n"
        "sys.exit(sys.stdin.read() != '')\n"
    )
    command = 'exec "$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["sh", "-c", command, sys.executable, source], timeout=60, check=True)
