"""The end of a process without finalising the interpreter."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import NoReturn

from tailrace.logs import log


def leave(status: int | None = None) -> NoReturn:
    """Ends the process without finalising the interpreter, for a server with requests that still run.

    status: None: 1 after an exception that has ended the program, else 0.

    Before Python 3.14 finalisation ends a thread that still runs by unwinding its stack. The frames of the core do not
    allow that, and the process would abort.
    """
    if status is None:
        status = 1 if getattr(sys, "last_value", None) is not None else 0
    for replaced in (leave, logging.shutdown, log.shutdown):
        atexit.unregister(replaced)
    atexit._run_exitfuncs()
    # Runs last, regardless of when it was registered, because the other functions may log.
    log.shutdown()
    log.flush_streams()
    os._exit(status)
