"""Decides which worker becomes the next mold (`--refork`), so that the others share what it has in memory by then.

No process, clock or log is used here. Thread: the master's only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.master.workers import Worker


class Refork:
    """counts: after how many requests of a worker, each time for the code that was loaded last.

    worker: the one that becomes the mold, from `choose` until it has, or has ended.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = sorted(counts)
        self._left = list(self._counts)
        self.worker: Worker | None = None

    def restart(self) -> None:
        """Another mold has loaded the application."""
        self._left = list(self._counts)
        self.worker = None

    def choose(self, served: Iterable[tuple[Worker, int]]) -> Worker | None:
        """The worker that has processed the most requests, if these are enough. None: no worker becomes a mold now.

        served: the workers that may, with the number of requests of each.
        """
        if self.worker is not None or not self._left:
            return None
        worker, count = max(served, key=lambda each: each[1], default=(None, 0))
        if worker is None or count < self._left[0]:
            return None
        # Also if it does not become one: a further attempt with the same code needs the next count.
        self._left.pop(0)
        self.worker = worker
        return worker
