"""Signals before the command handles them: Ctrl-C ends it without a traceback, and the signals of a running server do
nothing, since the pid file or the service manager may have named the process already.

The package imports this file before anything else, and it imports nothing that Python has not loaded by then: `signal`
takes milliseconds. What comes before that is Python's own start, whose signals nobody can handle.

Thread: the main one.
"""

from __future__ import annotations

import os

# What `signal` is made of. typeshed does not have it.
from _signal import (  # type: ignore[import-not-found]
    SIG_DFL,
    SIG_IGN,
    SIGHUP,
    SIGINT,
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
    """From now on Ctrl-C ends the process, and the signals of a server do nothing; unless they have handlers of others
    or are ignored."""
    try:
        if getsignal(SIGINT) is default_int_handler:
            signal(SIGINT, _leave)
        for number in _OF_A_SERVER:
            if getsignal(number) == SIG_DFL:
                # A handler instead of SIG_IGN, which programs that this process starts would inherit.
                signal(number, _ignore)
    except ValueError:
        # On another thread than the main one, Python allows no handlers.
        return


def interrupts_raise() -> None:
    """SIGINT raises KeyboardInterrupt, as usual; also where a shell ignores it for background jobs."""
    if getsignal(SIGINT) in (_leave, SIG_IGN):
        signal(SIGINT, default_int_handler)


def unprotect(numbers: tuple[int, ...] = _OF_A_SERVER) -> None:
    """These signals of a server end the process again, as any program."""
    for number in numbers:
        if getsignal(number) is _ignore:
            signal(number, SIG_DFL)


def _leave(number: int, frame: object) -> None:
    os._exit(STATUS)


def _ignore(number: int, frame: object) -> None:
    pass
