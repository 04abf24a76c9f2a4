"""Progress of a run: bars in a terminal (by rich), plain lines elsewhere. Both go to stderr; tables go to stdout."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

INSTALL = "for progress bars, install rich: pip install 'tailrace[compare]'"


class Progress(Protocol):
    """Told what is done."""

    def experiment(self, number: int, title: str) -> None:
        """The next one; the first has number 1."""

    def step(self, text: str) -> None:
        """What is done in it."""


class Lines:
    """A line each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.head = ""

    def experiment(self, number: int, title: str) -> None:
        self.head = f"[{number}/{self.count}] {title}"

    def step(self, text: str) -> None:
        print(f"{self.head}: {text}", file=sys.stderr, flush=True)


class Bars:
    """One bar for the run, with what is done now beside it."""

    def __init__(self, progress: RichProgress, count: int) -> None:
        self.progress = progress
        self.task: TaskID = progress.add_task("", total=count, now="")

    def experiment(self, number: int, title: str) -> None:
        self.progress.update(self.task, completed=number - 1, description=title, now="")

    def step(self, text: str) -> None:
        self.progress.update(self.task, now=text)


@contextlib.contextmanager
def shown(count: int) -> Iterator[Progress]:
    """Progress through so many experiments."""
    if not sys.stderr.isatty():
        yield Lines(count)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        print(INSTALL, file=sys.stderr)
        yield Lines(count)
        return
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}: {task.fields[now]}", markup=False),
    )
    # Tables that go to the same terminal pass above the bar; those that go to a file stay out of rich's hands.
    with RichProgress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        yield Bars(progress, count)
