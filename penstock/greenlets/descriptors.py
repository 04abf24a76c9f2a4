"""The limit of open files, which by default allows a thousand.

Programs that need more are to raise the lower limit to the upper one themselves: it is only as low as it is for the
sake of select(2), which greenlets do not use. See getrlimit(2).

Thread: the main one.
"""

from __future__ import annotations

import resource
from typing import Final

from penstock import log

# For each request: its client, and whom it asks.
_EACH: Final = 2
_OWN: Final = 256


def allow(requests: int) -> None:
    """Allows this process, if it can, to open what so many requests need; says so in the log if it cannot."""
    lower, upper = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = requests * _EACH + _OWN
    if upper != resource.RLIM_INFINITY and upper < requests + _OWN:
        log.logger.warning(
            "at most %d files may be open, fewer than --max-greenlets %d needs: clients beyond wait; raise the limit "
            "(`ulimit -Hn`, LimitNOFILE= of systemd), or lower --max-greenlets",
            upper,
            requests,
        )
    if lower != resource.RLIM_INFINITY and lower < wanted:
        most = wanted if upper == resource.RLIM_INFINITY else min(wanted, upper)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(lower, most), upper))
