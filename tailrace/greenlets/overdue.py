"""Requests in greenlets past their deadline: the pauses between attempts to end them, and the line of the log.

The core does the same for requests in threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.greenlets import stacks

if TYPE_CHECKING:
    from tailrace._tailrace import Overdue

# The pause between the first two attempts (seconds); each further pause is twice as long, up to the longest.
AGAIN: Final = 1.0
LONGEST: Final = 32.0


def said(late: Overdue, stack: stacks.Stack | None = None) -> str:
    """The entry of the log. stack: where the request's greenlet is; None when the request has ended meanwhile."""
    _, _, request, seconds, outcome = late
    where = (
        "it has just ended"
        if stack is None
        else f"RequestTimeout is raised in its greenlet, which is at\n{stacks.shown(stack)}"
    )
    return f"{request}: past its deadline after {seconds:.3f} s in the application; {outcome}; {where}"
