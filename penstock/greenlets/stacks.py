"""Where a greenlet or thread is, for the log: frames, from the outermost on, as in a traceback.

A suspended greenlet has a frame of its own; the one that runs has those of its thread, which end in its outermost one.

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

# As code objects name them: links are not followed.
_OURS: Final = str(Path(__file__).parent.parent) + "/"
_GEVENTS: Final = str(Path(gevent.__file__).parent) + "/"
NO_PYTHON: Final = "  (no Python code)"

Stack = list[tuple[FrameType, int]]


def of(frame: FrameType | None, *, rests: bool = False) -> Stack:
    """The frames that `frame` was called from, and itself.

    Those are left out that carry a request. rests: also the innermost ones, in gevent and in Penstock, which tell only
    that it waits.
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
    """What a thread does now; empty where it runs no Python code."""
    return of(sys._current_frames().get(ident))


def place(stack: Stack) -> Hashable:
    """The same for two greenlets at the same line of the same calls."""
    return tuple((frame.f_code, line) for frame, line in stack)


def shown(stack: Stack) -> str:
    """As in a traceback, without a line end. Raises nothing: sources are read, and loaders of the application asked."""
    try:
        lines = traceback.StackSummary.extract(iter(stack)).format()
    except Exception as error:
        return f"  (unknown: {error!r})"
    return "".join(lines).rstrip() or NO_PYTHON


def _is_within(frame: FrameType, *directories: str) -> bool:
    return frame.f_code.co_filename.startswith(directories)
