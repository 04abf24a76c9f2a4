"""What the master does next: which workers to fork, to retire, to kill.

Sans-io: no process, clock or log is touched here. The master says what happened (`forked`, `ready`, `ended`, `reload`,
`stop` ...) and does what `next` answers; the time is an argument.

Rules. There are as many workers as wanted. A worker that is to be replaced (its code is old, or it has served long
enough) keeps serving until its successor serves, and successors are forked one after the other. Workers that die come
back at once the first time, then after 1, 2, 4 ... 30 s while it goes on. When the new code of a reload does not load,
the reload is given up; one that hangs while it loads is named, and a further reload ends it. When none of the first
workers, or three in a row while nothing serves, come as far as serving, there is no hope.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import Final

from penstock.workers import Draining, Killed, Serving, Worker

LONGEST_DELAY: Final = 30.0
# Without a death for so long (seconds), the next one is a first again.
CALM: Final = 60.0
# Workers in a row that may fail before they serve.
FAILURES: Final = 3
# A worker that has not begun to serve has nothing to finish (seconds).
BOOT_PATIENCE: Final = 5.0
# A worker that loads for longer (seconds) is named in the log, once.
SLOW_BOOT: Final = 60.0
# What a worker may take beyond its graceful time-out to end: the interpreter's own end (seconds).
LEAVING: Final = 5.0


@dataclass(frozen=True)
class Fork:
    """Fork a worker with this number, in this place of the scoreboard."""

    number: int
    place: int
    generation: int


@dataclass(frozen=True)
class Retire:
    """Tell this worker to drain: a successor serves, or there is one too many."""

    worker: Worker


@dataclass(frozen=True)
class Kill:
    """This worker has had its time to end."""

    worker: Worker


@dataclass(frozen=True)
class Hangs:
    """This worker still loads, after so many seconds."""

    worker: Worker
    seconds: float


@dataclass(frozen=True)
class Reloaded:
    """The reload is complete; it took so many seconds."""

    seconds: float


Action = Fork | Retire | Kill | Hangs | Reloaded


class Verdict(enum.Enum):
    """What the end of a worker means."""

    EXPECTED = enum.auto()
    """It was told to."""
    CRASHED = enum.auto()
    """It served; another one takes its place."""
    NOT_READY = enum.auto()
    """It never served; another one is tried."""
    RELOAD_FAILED = enum.auto()
    """It never served, and those with the old code stay."""
    HOPELESS = enum.auto()
    """It never served, and no other one would."""


class Plan:
    """The workers and what is wanted of them.

    wanted: how many are to serve. places: of the scoreboard, for old and new workers together. graceful: seconds that a
    worker has to drain.
    """

    def __init__(self, wanted: int, places: int, graceful: float) -> None:
        self.workers: list[Worker] = []
        self.wanted = wanted
        self._places = places
        self._graceful = graceful
        self._generation = 1
        # Workers of an older generation are to be replaced. Behind `_generation` after a reload that was given up.
        self._required = 1
        self._reload_began: float | None = None
        self._stopping = False
        self._at_once = False
        self._ever_ready = False
        self._deaths = 0
        self._last_death = float("-inf")
        self._fork_at = float("-inf")
        self._failures = 0
        self._named: set[Worker] = set()

    @property
    def is_over(self) -> bool:
        """True when the master has nothing left to do."""
        return self._stopping and not self.workers

    @property
    def is_stopping(self) -> bool:
        """True once it was told to stop."""
        return self._stopping

    @property
    def is_reloading(self) -> bool:
        """True from `reload` to `Reloaded` or `Verdict.RELOAD_FAILED`."""
        return self._reload_began is not None

    @property
    def has_served(self) -> bool:
        """True once any worker has been ready."""
        return self._ever_ready

    @property
    def serving(self) -> list[Worker]:
        """The workers that serve and have not been told to end."""
        return [worker for worker in self.workers if worker.is_serving]

    @property
    def is_complete(self) -> bool:
        """True when as many workers serve as are wanted."""
        return len(self.serving) >= self.wanted

    # What happened

    def forked(self, worker: Worker) -> None:
        """A `Fork` was done."""
        self.workers.append(worker)

    def fork_failed(self, now: float) -> None:
        """A `Fork` could not be done: no processes or no memory left."""
        self._died(now)

    def ready(self, worker: Worker, now: float) -> bool:
        """The worker serves. False when it was told to end while it loaded: it may have taken a request or two before
        it learns of that, so it has the time of one that serves."""
        if worker.is_booting:
            worker.phase = Serving(now)
            self._ever_ready = True
            self._failures = 0
            return True
        if isinstance(worker.phase, Draining) and not self._at_once:
            worker.phase = Draining(now + self._graceful + LEAVING)
        return False

    def ended(self, worker: Worker, now: float) -> Verdict:
        """The worker's process is gone."""
        self.workers.remove(worker)
        self._named.discard(worker)
        if isinstance(worker.phase, (Draining, Killed)):
            return Verdict.EXPECTED
        if worker.is_serving:
            self._died(now)
            return Verdict.CRASHED
        serving = self.serving
        if self.is_reloading and worker.generation == self._required and serving:
            # Those with the old code are as good as before the reload.
            self._required = min(each.generation for each in serving)
            self._reload_began = None
            return Verdict.RELOAD_FAILED
        self._died(now)
        self._failures += 1
        if not self._ever_ready or (self._failures >= FAILURES and not serving):
            return Verdict.HOPELESS
        return Verdict.NOT_READY

    def reload(self, now: float) -> None:
        """All workers are to be replaced; during a reload once more, the one that boots included, which is told to end:
        it may hang."""
        self._generation += 1
        self._required = self._generation
        self._reload_began = now
        # New code may well end what made the workers die.
        self._deaths = self._failures = 0
        self._fork_at = float("-inf")

    def restart(self, now: float) -> list[Worker]:
        """All are to end now, and others with the new code to come at once: for development, where no request may be
        answered by old code any more. Those that are to be told so."""
        self.reload(now)
        told = [worker for worker in self.workers if worker.is_booting or worker.is_serving]
        for worker in told:
            worker.phase = Draining(now + (BOOT_PATIENCE if worker.is_booting else self._graceful + LEAVING))
        return told

    def grow(self) -> bool:
        """One worker more is wanted; False when there is no place for it."""
        # Each needs a second place for its successor.
        if self.wanted * 2 >= self._places:
            return False
        self.wanted += 1
        return True

    def shrink(self) -> bool:
        """One worker less is wanted; False for the last one."""
        if self.wanted == 1:
            return False
        self.wanted -= 1
        return True

    def stop(self, now: float) -> list[Worker]:
        """All are to drain, and no others come. Those that are to be told so."""
        self._stopping = True
        told = [worker for worker in self.workers if worker.is_booting or worker.is_serving]
        for worker in told:
            worker.phase = Draining(now + (BOOT_PATIENCE if worker.is_booting else self._graceful + LEAVING))
        return told

    def stop_now(self, now: float) -> list[Worker]:
        """All are to end at once. Those that are to be told so."""
        self._stopping = self._at_once = True
        told = [worker for worker in self.workers if not isinstance(worker.phase, Killed)]
        for worker in told:
            worker.phase = Draining(now if worker.is_booting else now + LEAVING)
        return told

    # What to do

    def next(self, now: float) -> list[Action]:
        """What is to be done at once. Workers to retire or to kill count as told."""
        actions: list[Action] = []
        for worker in self.workers:
            if isinstance(worker.phase, Draining) and now >= worker.phase.until:
                worker.phase = Killed()
                actions.append(Kill(worker))
        if self._stopping:
            return actions
        for worker in self.workers:
            if worker.is_booting and self._is_old(worker):
                worker.phase = Draining(now + BOOT_PATIENCE)
                actions.append(Retire(worker))
            elif worker.is_booting and now >= worker.forked + SLOW_BOOT and worker not in self._named:
                self._named.add(worker)
                actions.append(Hangs(worker, now - worker.forked))
        for worker in self._surplus():
            worker.phase = Draining(now + self._graceful + LEAVING)
            actions.append(Retire(worker))
        if now >= self._fork_at:
            actions += self._forks()
        if self._reload_began is not None and self.is_complete and not any(map(self._is_old, self.workers)):
            actions.append(Reloaded(now - self._reload_began))
            self._reload_began = None
        return actions

    def wake_at(self, now: float) -> float | None:
        """When `next` has something to do though nothing happens; None: never."""
        times = [worker.phase.until for worker in self.workers if isinstance(worker.phase, Draining)]
        if not self._stopping:
            boots = (worker for worker in self.workers if worker.is_booting and worker not in self._named)
            times += [worker.forked + SLOW_BOOT for worker in boots]
            # Those of now are done, but for one that failed.
            if self._forks():
                times.append(max(now, self._fork_at))
        return min(times, default=None)

    def _surplus(self) -> list[Worker]:
        """The serving workers beyond those wanted: first those whose successor serves, then others that are to be
        replaced, then the last numbers."""
        serving = self.serving
        newest = {worker.number: worker for worker in sorted(serving, key=lambda worker: worker.forked)}

        def order(worker: Worker) -> tuple[bool, bool, int, int]:
            replaced = newest[worker.number] is not worker
            return (not replaced, not self._is_outdated(worker), -worker.number, worker.generation)

        return sorted(serving, key=order)[: max(0, len(serving) - self.wanted)]

    def _forks(self) -> list[Fork]:
        """Those that are missing, all at once; or one successor, while no other one boots."""
        active = [worker for worker in self.workers if worker.is_booting or worker.is_serving]
        taken = {worker.number for worker in active}
        missing = self.wanted - len(active)
        free = (number for number in itertools.count(1) if number not in taken)
        numbers = list(itertools.islice(free, max(0, missing)))
        if missing == 0 and not any(worker.is_booting for worker in active):
            outdated = sorted(filter(self._is_outdated, active), key=lambda worker: (worker.generation, worker.number))
            numbers = [worker.number for worker in outdated[:1]]
        used = {worker.place for worker in self.workers}
        places = [place for place in range(self._places) if place not in used]
        return [Fork(number, place, self._generation) for number, place in zip(numbers, places, strict=False)]

    def _is_old(self, worker: Worker) -> bool:
        """Its code is old, and it has not been told to end."""
        return worker.generation < self._required and (worker.is_booting or worker.is_serving)

    def _is_outdated(self, worker: Worker) -> bool:
        return worker.is_serving and (self._is_old(worker) or worker.due != "")

    def _died(self, now: float) -> None:
        if now - self._last_death > CALM:
            self._deaths = 0
        self._last_death = now
        self._deaths += 1
        delay = 0.0 if self._deaths == 1 else min(2.0 ** (self._deaths - 2), LONGEST_DELAY)
        self._fork_at = now + delay
