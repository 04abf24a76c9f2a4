"""What is left of workers that have ended: their counters, added, and why they were replaced.

No process, clock or log is used here. Thread: the master's only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.master.plan import Verdict
from tailrace.master.workers import Worker
from tailrace.status import counts
from tailrace.status.table import GROWING

CRASH: Final = "crash"
HANG: Final = "hang"
LOAD_FAILURE: Final = "load_failure"
RELOAD: Final = "reload"
REFORK: Final = "refork"
# The others are those of `recycle`.
REASONS: Final = (
    *(CRASH, HANG, LOAD_FAILURE, RELOAD, REFORK),
    *("max_requests", "max_lifetime", "max_rss", "stuck_thread"),
)


class Tally:
    """Counts since the master has started. restarts: by reason. ended: the counters of workers that have ended.

    delivered: the counts of their responses. none: those of a worker that has just begun.
    """

    def __init__(self, none: counts.Counts) -> None:
        self.restarts = dict.fromkeys(REASONS, 0)
        self.ended = dict.fromkeys(GROWING, 0)
        self.delivered = counts.added([none])

    def has_ended(
        self, worker: Worker, verdict: Verdict, counters: Mapping[str, int], deliveries: counts.Counts
    ) -> None:
        """A worker has ended, with these counters and counts of responses."""
        self.delivered = counts.added([self.delivered, deliveries])
        for name in GROWING:
            self.ended[name] += counters[name]
        if verdict is Verdict.CRASHED:
            reason = CRASH
        elif verdict is Verdict.EXPECTED:
            reason = worker.replaced_for
        else:
            reason = LOAD_FAILURE
        if reason:
            self.restarts[reason] += 1
