"""A process beside the workers, after its fork: see `tailrace.master.companion`.

It ignores the signals that a terminal or a service manager sends to every process: the master ends it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from typing import Final

from tailrace._tailrace import end_with_parent
from tailrace.logs import deliveries, log
from tailrace.system import forks, signals
from tailrace.system.title import set_title

_IGNORED: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR2),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG),
)


def begin(name: str, application: str, master: int, mask: Collection[int]) -> None:
    """Makes the calling process one that only the master ends. name, application: for the title. mask: the signal mask
    to restore."""
    signal.set_wakeup_fd(-1)
    signals.reset()
    for number in _IGNORED:
        signals.ignore_always(number)
    signals.handle(signal.SIGUSR1, lambda number, frame: log.reopen())
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    end_with_parent(True)
    if os.getppid() != master:
        os._exit(1)
    forks.forget_all()
    # Those of an application that the master has loaded.
    deliveries.forget_all()
    log.allow_thread()
    set_title(name, application)
