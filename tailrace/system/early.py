"""Signals before the command handles them. Ctrl-C ends it without a traceback. The signals of a running server do
nothing, since the pid file or the service manager may have published the process id already.

The package imports this file before anything else. The file imports nothing that Python has not loaded by then:
importing `signal` takes milliseconds. Signals during Python's own start, before this file, cannot be handled.

Thread: the main one.
"""

from __future__ import annotations

import os

# The C module behind `signal`, which typeshed does not have.
from _signal import (  # type: ignore[import-not-found]
    SIG_DFL,
    SIG_IGN,
    SIGHUP,
    SIGINT,
    SIGTERM,
    SIGUSR1,
    SIGUSR2,
    default_int_handler,
    getsignal,
    signal,
)

# Exit status after Ctrl-C: what a shell reports for SIGINT.
STATUS = 130
# Ignored until a master handles them.
_OF_A_SERVER = (SIGHUP, SIGUSR1, SIGUSR2)


def protect() -> None:
    """From now on, Ctrl-C ends the process, and the signals of a server do nothing. A signal that already has another
    handler, or is ignored, is left alone."""
    try:
        if getsignal(SIGINT) is default_int_handler:
            signal(SIGINT, _leave)
        for number in _OF_A_SERVER:
            if getsignal(number) == SIG_DFL:
                # A handler instead of SIG_IGN, which programs that this process starts would inherit.
                signal(number, _ignore)
    except ValueError:
        # Python allows handlers only on the main thread.
        return


def interrupts_raise() -> None:
    """SIGINT raises KeyboardInterrupt, as usual; also where a shell ignores it for background jobs."""
    if getsignal(SIGINT) in (_leave, SIG_IGN):
        signal(SIGINT, default_int_handler)


def ignore_stops() -> None:
    """For `atexit`: the server has ended, Python takes some milliseconds more, and a repeated signal must not change
    the exit status."""
    for number in (SIGINT, SIGTERM):
        # No handler, since Python removes handlers before its last steps.
        signal(number, SIG_IGN)


def unprotect(numbers: tuple[int, ...] = _OF_A_SERVER) -> None:
    """These signals of a server end the process again, as they end any program."""
    for number in numbers:
        if getsignal(number) is _ignore:
            signal(number, SIG_DFL)


def _leave(number: int, frame: object) -> None:
    os._exit(STATUS)


def _ignore(number: int, frame: object) -> None:
    pass
