"""Tracebacks of the application, without the frames of Tailrace and of the import system."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

_OUR_FILES: Final = (
    f"{Path(__file__).parent.parent}/",
    importlib.__file__,
    importlib.util.__file__,
    "<frozen importlib",
)


def summary(error: BaseException) -> str:
    """The last line of a traceback: the exception's type and what it says."""
    return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]


def formatted(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback as Python prints it, from the frames of `trace` on."""
    return "".join(traceback.TracebackException(type(error), error, trace).format())


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is neither ours nor the import system's.

    Later frames of the import system are left out, too.
    """
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
        trace = trace.tb_next
    step = trace
    while step is not None:
        following = step.tb_next
        while following is not None and following.tb_frame.f_code.co_filename.startswith("<frozen importlib"):
            following = following.tb_next
        step.tb_next = following
        step = following
    return trace
