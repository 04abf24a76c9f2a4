"""`tailrace doctor`: from the options to what is printed and the exit status."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import click

from tailrace import commands
from tailrace.cli.settings import Settings
from tailrace.errors import CANNOT_START, ConfigError
from tailrace_tools.doctor import places, show
from tailrace_tools.doctor.asking import request
from tailrace_tools.doctor.examine import examine
from tailrace_tools.doctor.findings import findings, hints

WELL: Final = 0
FOUND: Final = 1
WRONG_USE: Final = 2


def run(
    settings: Settings,
    *,
    url: str,
    method: str | None,
    headers: tuple[str, ...],
    body: str | None,
    times: int,
    timeout: float,
    as_json: bool,
) -> tuple[str, int]:
    """What is to be printed, and the exit status. Raises ConfigError, LoadError.

    settings: of the server. body: a file, or `-` for standard input. timeout: seconds for one response.
    """
    asked = request(url, method, headers, _body(body))
    name = settings["app"].value
    # What the application prints must not get among the output.
    with contextlib.redirect_stdout(sys.stderr), _exits_are_told(name):
        measured = examine(commands.loaded(settings), asked, name, times=times, seconds=timeout)
    found, beside = findings(measured), hints(measured)
    return (show.as_json if as_json else show.as_text)(measured, found, beside), FOUND if found else WELL


@contextlib.contextmanager
def _exits_are_told(application: str) -> Iterator[None]:
    """Inside the context, an application that ends its process by `os._exit` is named; the status is CANNOT_START."""
    process, leave = os.getpid(), os._exit

    def told(status: int) -> NoReturn:
        # A process that the application has forked ends as usual.
        if os.getpid() == process:
            place = places.of_caller(sys._getframe(1))
            click.echo(
                f"tailrace: error: {application} ended its process with os._exit({status}) at {place}, so there is no "
                "response to measure; choose another URL",
                err=True,
            )
            status = CANNOT_START
        leave(status)

    os._exit = told
    try:
        yield
    finally:
        os._exit = leave


def _body(name: str | None) -> bytes | None:
    if name is None:
        return None
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--body {name}: cannot be read: {getattr(error, 'strerror', error)}; name a file with the request body"
        ) from None
