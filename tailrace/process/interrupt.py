"""Ctrl-C while the command is imported: the process ends without a traceback, with the status that shells use for
SIGINT.

Thread: the main one.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

STATUS = 130


def ends_the_process() -> None:
    """SIGINT ends the process from now on, unless it has another handler than Python's, or is ignored."""
    if threading.current_thread() is threading.main_thread() and _is_handled_by(signal.default_int_handler):
        signal.signal(signal.SIGINT, _leave)


def raises() -> None:
    """SIGINT raises KeyboardInterrupt, as usual; also where a shell ignores it for background jobs."""
    if _is_handled_by(_leave) or _is_handled_by(signal.SIG_IGN):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_handled_by(handler: object) -> bool:
    return signal.getsignal(signal.SIGINT) is handler


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(STATUS)
