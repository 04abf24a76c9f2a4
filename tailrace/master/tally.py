"""What is left of workers that have ended: their counters, added, and why they were replaced.

No process, clock or log is used here. Thread: the master's only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.master.plan import Verdict
from tailrace.master.recycle import Reason
from tailrace.master.workers import Worker
from tailrace.status import counts
from tailrace.status.table import GROWING

# The ending of a lost response.
BROKEN: Final = "broken"


class Tally:
    """Counts since the master has started. restarts: by reason. ended: the counters of workers that have ended.

    delivered: the counts of their responses. none: those of a worker that has just begun.
    """

    def __init__(self, none: counts.Counts) -> None:
        self.restarts = dict.fromkeys(Reason, 0)
        self.ended = dict.fromkeys(GROWING, 0)
        self.delivered = counts.added([none])

    def has_ended(
        self, worker: Worker, verdict: Verdict, counters: Mapping[str, int], deliveries: counts.Counts, running: int
    ) -> None:
        """A worker has exited, with these counters and counts of responses. running: its requests in
        flight; if it crashed or hung, their responses count as broken."""
        for name in GROWING:
            self.ended[name] += counters[name]
        if verdict is Verdict.CRASHED:
            reason: Reason | None = Reason.CRASH
        elif verdict is Verdict.EXPECTED:
            reason = worker.replaced_for
        else:
            reason = Reason.LOAD_FAILURE
        lost = running if reason in (Reason.CRASH, Reason.HANG) else 0
        self.delivered = counts.added([self.delivered, deliveries, {"endings": {BROKEN: lost}}])
        if reason is not None:
            self.restarts[reason] += 1
