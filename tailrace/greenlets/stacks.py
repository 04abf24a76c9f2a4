"""The stack of a greenlet or thread, for the log: frames, outermost first, as in a traceback.

A suspended greenlet has a frame of its own. The one that runs has the frames of its thread.

Thread: any.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Hashable
from pathlib import Path
from types import FrameType
from typing import Final

import gevent

# Not resolved: code objects have the paths by which modules were imported.
_OURS: Final = str(Path(__file__).parent.parent) + "/"
_GEVENTS: Final = str(Path(gevent.__file__).parent) + "/"
NO_PYTHON: Final = "  (no Python code)"

Stack = list[tuple[FrameType, int]]


def of(frame: FrameType | None, *, rests: bool = False) -> Stack:
    """`frame` and the frames that it was called from, without the outermost ones of Tailrace.

    rests: the greenlet is suspended; the innermost frames in gevent and in Tailrace, which are the waiting itself, are
    left out, too.
    """
    found: Stack = []
    while frame is not None:
        found.append((frame, frame.f_lineno))
        frame = frame.f_back
    if rests:
        inside = next((index for index, (each, _) in enumerate(found) if not _is_within(each, _OURS, _GEVENTS)), 0)
        del found[:inside]
    found.reverse()
    begin = next((index for index, (each, _) in enumerate(found) if not _is_within(each, _OURS)), 0)
    return found[begin:]


def of_thread(ident: int) -> Stack:
    """The frames of a thread; empty while it runs no Python code."""
    return of(sys._current_frames().get(ident))


def place(stack: Stack) -> Hashable:
    """A key that is the same for two greenlets at the same lines of the same calls."""
    return tuple((frame.f_code, line) for frame, line in stack)


def shown(stack: Stack, *, innermost_first: bool = False) -> str:
    """The text of a traceback, or the same with the innermost call first, without a line end.

    Never raises: reading sources may fail, and calls loaders of the application.
    """
    try:
        lines = traceback.StackSummary.extract(iter(stack[::-1] if innermost_first else stack)).format()
    except Exception as error:
        return f"  (unknown: {error!r})"
    return "".join(lines).rstrip() or NO_PYTHON


def _is_within(frame: FrameType, *directories: str) -> bool:
    return frame.f_code.co_filename.startswith(directories)
