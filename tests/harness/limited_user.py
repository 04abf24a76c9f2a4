"""Runs a Python program as another user, so that RLIMIT_NPROC holds for it: root is exempt. The other user may read
what root may.

    python limited_user.py -m tailrace shop:app

If this does not run as root, the program runs as the same user.
"""

import os
import sys

# No user has an ID from here on, so all processes of such an ID belong to one test.
FIRST_ID = 1_000_000_000
CAPABILITIES = "+dac_read_search,+dac_override"


def prefix() -> list[str]:
    """The arguments of Python that come before those of the program."""
    return [__file__]


if __name__ == "__main__":
    program = [sys.executable, *sys.argv[1:]]
    if os.getuid() == 0:
        user = str(FIRST_ID + os.getpid())
        reads = [f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}"]
        program = ["/usr/bin/setpriv", "--reuid", user, "--clear-groups", *reads, *program]
    os.execv(program[0], program)
