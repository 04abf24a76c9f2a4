"""Requests past their deadline: when it is tried again to end them, and what the log says.

The core does the same for threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.greenlets import stacks

if TYPE_CHECKING:
    from penstock._penstock import Overdue

# Between the first two attempts (seconds); each further pause is twice as long, up to the longest.
AGAIN: Final = 1.0
LONGEST: Final = 32.0


def said(late: Overdue, stack: stacks.Stack | None = None) -> str:
    """The entry of the log. stack: where its greenlet is; None when the request has ended meanwhile."""
    _, _, request, seconds, outcome = late
    where = (
        "it has just ended"
        if stack is None
        else f"RequestTimeout is raised in its greenlet, which is at\n{stacks.shown(stack)}"
    )
    return f"{request}: past its deadline after {seconds:.3f} s in the application; {outcome}; {where}"
