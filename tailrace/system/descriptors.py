"""Descriptors 0 to 2, which are always open, and the ends of pipes."""

from __future__ import annotations

import os
import select
import sys
from typing import Final

_STANDARD: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def is_at_end(pipe: int, seconds: float = 0.0) -> bool:
    """Whether the writing end of a pipe is closed within this time: the process that alone had it has ended."""
    poll = select.poll()
    # POLLHUP is reported without being asked for.
    poll.register(pipe, 0)
    return bool(poll.poll(seconds * 1000))


def open_standard() -> None:
    """Opens standard input, output and error on the null device where they are closed.

    Otherwise the next file that is opened, such as a client's socket, would become standard output.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < len(_STANDARD):
        # A program that the application starts expects them open, too.
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def open_standard_streams() -> None:
    """As `open_standard`, and makes the streams of `sys` that are missing because their descriptor was closed.

    Only for the command: in an embedding program the streams belong to the program.
    """
    open_standard()
    for number, (name, mode) in enumerate(_STANDARD):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, errors="backslashreplace", closefd=False))  # noqa: SIM115
