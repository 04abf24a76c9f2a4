"""What the master does next: which workers to fork, to drain, to kill.

Sans-io: no process, clock or log is used here. The master calls `forked`, `ready`, `ended`, `reload`, `stop` and others
when something has happened, and does what `next` returns; the time is an argument.

Rules:
- There are as many workers as wanted.
- A worker that is to be replaced (its code is old, or it has served long enough) keeps serving until its successor
  serves. Successors are forked one after the other.
- A worker that dies after it has served is replaced at once, though not more than once a second. One that dies before
  it serves is tried again after 1, 2, 4 ... 30 s. Both are counted for each worker number, and the waits are short
  while no worker serves.
- When the new code of a reload does not load, the reload ends and the old workers stay. A worker that takes long to
  load is named in the log, and a further reload ends it.
- With a trial, the first worker with the new code serves beside all old ones for that time. Then the master accepts the
  reload, which continues, or rejects it: it ends, and so does the worker. A worker that does not survive its trial is
  rejected.
- When none of the first workers could serve, or three in a row failed while none serves, the server stops.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import Final, NamedTuple

from tailrace.master.hang import WRITING
from tailrace.master.workers import Draining, Hung, Killed, Serving, Worker
from tailrace.worker.announce import LOADING_AFTER

# A worker that failed before it served is tried again after the first delay, then each time after twice as long, up to
# the longest delay (seconds).
FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 30.0
# The shortest time from one fork to the next of the same number, when the worker has served (seconds): otherwise one
# that dies as soon as it serves would be forked without pause. The second is for the time when no worker serves.
BETWEEN_FORKS: Final = 1.0
BETWEEN_FORKS_ALONE: Final = 0.1
# The server stops when this many workers in a row failed before they served, and none serves.
FAILURES: Final = 3
# How long a worker that does not serve yet may take to end (seconds). It has no request to finish.
BOOT_LEAVING: Final = 5.0
# A worker that loads for longer (seconds) is named in the log, once.
SLOW_BOOT_AFTER: Final = 60.0
# How long a worker may take to end after its graceful time-out, for exit functions and the interpreter (seconds).
LEAVING: Final = 5.0


class Wait(NamedTuple):
    """When a number may be forked again.

    until: while other workers serve. until_alone: while none serves. failures: how many of its workers in a row ended
    before they served.
    """

    until: float
    until_alone: float
    failures: int = 0


class Fork(NamedTuple):
    """Fork a worker with this number, in this place of the scoreboard."""

    number: int
    place: int
    generation: int


class Drain(NamedTuple):
    """Tell this worker to drain: its successor serves, or there is one worker too many."""

    worker: Worker


class Kill(NamedTuple):
    """Kill this worker: its time to end is over. hung: it was not told to end, but hangs."""

    worker: Worker
    hung: bool = False


class Loading(NamedTuple):
    """Log that the application is still loaded for the first time."""


class SlowBoot(NamedTuple):
    """Log that this worker still loads after so many seconds."""

    worker: Worker
    seconds: float


class Reloaded(NamedTuple):
    """The reload is complete; it took so many seconds."""

    seconds: float


Action = Fork | Drain | Kill | Loading | SlowBoot | Reloaded


class Verdict(enum.Enum):
    """Why a worker has ended, and what follows."""

    EXPECTED = enum.auto()
    """It was told to end."""
    CRASHED = enum.auto()
    """It served, and was not told to end; another one takes its place."""
    NOT_READY = enum.auto()
    """It never served; another one is tried."""
    RELOAD_FAILED = enum.auto()
    """It never served, or died on trial, and those with the old code stay."""
    GIVE_UP = enum.auto()
    """It never served, and others would not either: the server stops."""


class Plan:
    """The workers, and what is to be done with them.

    wanted: how many are to serve. places: how many the scoreboard has, for old and new workers together. graceful: how
    long a worker may drain (seconds). trial: how long the first worker of a reload is on trial (seconds); 0: no trial.
    """

    def __init__(self, wanted: int, places: int, graceful: float, trial: float = 0.0) -> None:
        self.workers: list[Worker] = []
        self.wanted = wanted
        self._places = places
        self._graceful = graceful
        self._trial = trial
        self._generation = 1
        # Workers of an older generation are to be replaced. Less than `_generation` after a reload that was given up.
        self._required = 1
        self._reload_began: float | None = None
        # The reload needs no trial, or no further one.
        self._is_accepted = True
        self._trial_ends: float | None = None
        # The workers of this generation are to end.
        self._rejected = 0
        # It was told to stop.
        self.is_stopping = False
        self._at_once = False
        # Any worker has been ready.
        self.has_served = False
        # By number, where a worker has died.
        self._waits: dict[int, Wait] = {}
        self._failures = 0
        self._named: set[Worker] = set()
        self._has_told_loading = False
        # Whether anything can be forked now.
        self.may_fork: Callable[[], bool] = lambda: True
        # True after a rejected reload, if a successor would have the rejected code: workers are not recycled.
        self.keeps_rejected_code_out = False

    @property
    def is_over(self) -> bool:
        """True when the master has nothing left to do."""
        return self.is_stopping and not self.workers

    @property
    def is_reloading(self) -> bool:
        """True from `reload` to `Reloaded` or `Verdict.RELOAD_FAILED`."""
        return self._reload_began is not None

    @property
    def serving(self) -> list[Worker]:
        """The workers that serve and have not been told to end."""
        return [worker for worker in self.workers if worker.is_serving]

    @property
    def may_recycle(self) -> bool:
        """False while a successor would have code that is on trial or was rejected."""
        return self._trial_ends is None and not self.keeps_rejected_code_out

    @property
    def trial_ends(self) -> float | None:
        """When the reload is to be accepted or rejected; None: no worker is on trial."""
        return None if self.is_stopping else self._trial_ends

    @property
    def is_complete(self) -> bool:
        """True when as many workers serve as are wanted."""
        return len(self.serving) >= self.wanted

    # What happened

    def forked(self, worker: Worker) -> None:
        """A `Fork` was done."""
        self.workers.append(worker)

    def fork_failed(self, worker: Worker, now: float) -> None:
        """A `Fork` failed: there are no processes or memory left, or the mold has exited."""
        if worker in self.workers:
            self.workers.remove(worker)
            self._named.discard(worker)
        if worker.is_booting and not self._is_old(worker):
            self._has_failed(worker.number, now)

    def ready(self, worker: Worker, now: float) -> bool:
        """The worker serves. False when it was told to end while it loaded.

        It may have accepted requests before it handles the signal, so it then has the time of a worker that serves.
        """
        if worker.is_booting:
            worker.phase = Serving(now)
            self.has_served = True
            self._failures = 0
            self._waits.pop(worker.number, None)
            if not self._is_accepted and self._trial_ends is None and any(map(self._is_old, self.serving)):
                self._trial_ends = now + self._trial
            return True
        if isinstance(worker.phase, Draining) and not self._at_once:
            worker.phase = Draining(now + self._graceful + LEAVING)
        return False

    def ended(self, worker: Worker, now: float) -> Verdict:
        """The worker's process is gone."""
        self.workers.remove(worker)
        self._named.discard(worker)
        if isinstance(worker.phase, (Draining, Hung, Killed)):
            return Verdict.EXPECTED
        if worker.is_serving:
            if self._fails_trial(worker):
                self.reject()
                return Verdict.RELOAD_FAILED
            forked = worker.forked
            self._waits[worker.number] = Wait(forked + BETWEEN_FORKS, forked + BETWEEN_FORKS_ALONE)
            return Verdict.CRASHED
        serving = self.serving
        if self.is_reloading and worker.generation == self._required and serving:
            # The workers with the old code stay.
            if self._trial_ends is not None and any(map(self._is_old, serving)):
                self.reject()
            else:
                self._end_reload(serving)
            return Verdict.RELOAD_FAILED
        if self._is_old(worker):
            # It had the code before the last reload, so its failure does not count.
            return Verdict.NOT_READY
        self._has_failed(worker.number, now)
        self._failures += 1
        if not self.has_served or (self._failures >= FAILURES and not serving):
            return Verdict.GIVE_UP
        return Verdict.NOT_READY

    def hangs(self, worker: Worker, now: float) -> bool:
        """A worker that serves hangs. Another one takes its place at once; the worker has WRITING seconds to write its
        stacks until it is killed. True if it was on trial, so that the reload has ended and the old workers stay."""
        fails = self._fails_trial(worker)
        worker.phase = Hung(now + WRITING)
        if fails:
            self.reject()
        return fails

    def is_on_trial(self, worker: Worker) -> bool:
        """True while it serves for the trial of a reload."""
        return self.trial_ends is not None and worker.is_serving and worker.generation == self._generation

    def _fails_trial(self, worker: Worker) -> bool:
        """Whether the reload is to be rejected because this worker, which serves, does no longer."""
        return self.is_on_trial(worker) and any(map(self._is_old, self.serving))

    def accept(self) -> None:
        """The worker on trial does as well as the old ones, which are now replaced."""
        self._is_accepted = True
        self._trial_ends = None

    def reject(self) -> None:
        """The worker on trial does worse: it ends, and the old workers stay. At least one of them must serve."""
        self._rejected = self._generation
        self.keeps_rejected_code_out = True
        # A worker that is forked from now on is not on trial, whatever code it finds.
        self._generation += 1
        self._end_reload([worker for worker in self.serving if worker.generation < self._rejected])

    def _end_reload(self, serving: list[Worker]) -> None:
        """The reload has failed; these workers with the old code stay."""
        self._required = min(each.generation for each in serving)
        self._reload_began = None
        self.accept()

    def reload(self, now: float) -> None:
        """All workers are to be replaced, also during a reload. A worker that is still loading is told to end, because
        it may hang, and so is one on trial."""
        self.keeps_rejected_code_out = False
        self._rejected = self._generation if self._trial_ends is not None else 0
        self._is_accepted = self._trial == 0
        self._trial_ends = None
        self._generation += 1
        self._required = self._generation
        self._reload_began = now
        # The new code may have fixed why workers failed.
        self._failures = 0
        self._waits.clear()

    def restart(self, now: float) -> list[Worker]:
        """All workers end now, and others with the new code are forked at once. Returns those that are to be told.

        For development, where no request may be answered by old code any more.
        """
        self.reload(now)
        self.accept()
        return self._all_drain(now)

    def resize(self, wanted: int) -> None:
        """Another number of workers is wanted: as many of these as there are places for."""
        # Each worker needs a second place, for its successor.
        self.wanted = max(1, min(wanted, (self._places + 1) // 2))

    def grow(self) -> bool:
        """One worker more is wanted; False when there is no place for it."""
        before = self.wanted
        self.resize(before + 1)
        return self.wanted > before

    def shrink(self) -> bool:
        """One worker less is wanted; False for the last one."""
        if self.wanted == 1:
            return False
        self.wanted -= 1
        return True

    def stop(self, now: float) -> list[Worker]:
        """All workers drain, and no others are forked. Returns those that are to be told."""
        self.is_stopping = True
        return self._all_drain(now)

    def _all_drain(self, now: float) -> list[Worker]:
        told = [worker for worker in self.workers if worker.is_booting or worker.is_serving]
        for worker in told:
            worker.phase = Draining(now + (BOOT_LEAVING if worker.is_booting else self._graceful + LEAVING))
        return told

    def stop_now(self, now: float) -> list[Worker]:
        """All workers end at once. Returns those that are to be told."""
        self.is_stopping = self._at_once = True
        told = [worker for worker in self.workers if not isinstance(worker.phase, (Hung, Killed))]
        for worker in told:
            worker.phase = Draining(now if worker.is_booting else now + LEAVING)
        return told

    # What to do

    def next(self, now: float) -> list[Action]:
        """What is to be done now. Workers to drain or to kill count as told."""
        actions: list[Action] = []
        for worker in self.workers:
            if isinstance(worker.phase, (Draining, Hung)) and now >= worker.phase.until:
                actions.append(Kill(worker, isinstance(worker.phase, Hung)))
                worker.phase = Killed()
        if self.is_stopping:
            return actions
        if self._trial_ends is not None and not any(map(self._is_old, self.serving)):
            # There is no other worker left to compare with, or to go back to.
            self.accept()
        for worker in self.workers:
            if worker.is_booting and self._is_old(worker):
                worker.phase = Draining(now + BOOT_LEAVING)
                actions.append(Drain(worker))
            elif worker.is_booting and now >= worker.forked + SLOW_BOOT_AFTER and worker not in self._named:
                self._named.add(worker)
                actions.append(SlowBoot(worker, now - worker.forked))
        if (at := self._tells_loading_at()) is not None and now >= at:
            self._has_told_loading = True
            actions.append(Loading())
        # Those that are too many are counted without the rejected ones.
        for leaving in (self._those_rejected, self._surplus):
            for worker in leaving():
                worker.phase = Draining(now + self._graceful + LEAVING)
                actions.append(Drain(worker))
        for worker in self._surplus_boots():
            worker.phase = Draining(now + BOOT_LEAVING)
            actions.append(Drain(worker))
        actions += [fork for fork in self._forks() if now >= self._fork_at(fork.number)]
        if self._reload_began is not None and self.is_complete and not any(map(self._is_old, self.workers)):
            actions.append(Reloaded(now - self._reload_began))
            self._reload_began = None
        return actions

    def wake_at(self, now: float) -> float | None:
        """When `next` has something to do though nothing happens; None: never."""
        times = [worker.phase.until for worker in self.workers if isinstance(worker.phase, (Draining, Hung))]
        if not self.is_stopping:
            boots = (worker for worker in self.workers if worker.is_booting and worker not in self._named)
            times += [worker.forked + SLOW_BOOT_AFTER for worker in boots]
            times += [at for at in (self._tells_loading_at(), self._trial_ends) if at is not None]
            # `next` has returned the forks that are due; one that failed is due again later.
            times += [max(now, self._fork_at(fork.number)) for fork in self._forks()]
        return min(times, default=None)

    def _tells_loading_at(self) -> float | None:
        """When `Loading` is due; None: it was logged, or a worker has served, or none loads."""
        if self.has_served or self._has_told_loading:
            return None
        return min((worker.forked + LOADING_AFTER for worker in self.workers if worker.is_booting), default=None)

    def _those_rejected(self) -> list[Worker]:
        return [worker for worker in self.serving if worker.generation == self._rejected]

    def _surplus_boots(self) -> list[Worker]:
        """The loading workers that are too many, the highest numbers first, when fewer workers are wanted than before.

        Successors of workers that serve are not among them.
        """
        serving = self.serving
        replaced = {worker.number for worker in serving}
        alone = [worker for worker in self.workers if worker.is_booting and worker.number not in replaced]
        excess = max(0, len(serving) + len(alone) - self.wanted)
        return sorted(alone, key=lambda worker: -worker.number)[:excess]

    def _surplus(self) -> list[Worker]:
        """The serving workers that are too many: first those whose successor serves, then others that are to be
        replaced, then the highest numbers. One on trial is not too many."""
        serving = [worker for worker in self.serving if not self.is_on_trial(worker)]
        newest = {worker.number: worker for worker in sorted(serving, key=lambda worker: worker.forked)}

        def order(worker: Worker) -> tuple[bool, bool, int, int]:
            replaced = newest[worker.number] is not worker
            return (not replaced, not self._is_outdated(worker), -worker.number, worker.generation)

        return sorted(serving, key=order)[: max(0, len(serving) - self.wanted)]

    def _forks(self) -> list[Fork]:
        """The workers that are missing; or, when none is missing and none loads, one successor."""
        if not self.may_fork():
            return []
        active = [worker for worker in self.workers if worker.is_booting or worker.is_serving]
        taken = {worker.number for worker in active}
        missing = self.wanted - len(active)
        free = (number for number in itertools.count(1) if number not in taken)
        numbers = list(itertools.islice(free, max(0, missing)))
        if missing == 0 and self._trial_ends is None and not any(worker.is_booting for worker in active):
            # Sorted by time: a worker whose successor has failed, and waits, does not delay the others.
            outdated = sorted(
                filter(self._is_outdated, active),
                key=lambda worker: (self._fork_at(worker.number), worker.generation, worker.number),
            )
            numbers = [worker.number for worker in outdated[:1]]
        used = {worker.place for worker in self.workers}
        places = [place for place in range(self._places) if place not in used]
        return [Fork(number, place, self._generation) for number, place in zip(numbers, places, strict=False)]

    def has_current_code(self, worker: Worker) -> bool:
        """False: it was forked before the last reload, which has not failed."""
        return worker.generation >= self._required

    def _is_old(self, worker: Worker) -> bool:
        """Its code is old, and it has not been told to end."""
        return not self.has_current_code(worker) and (worker.is_booting or worker.is_serving)

    def _is_outdated(self, worker: Worker) -> bool:
        return worker.is_serving and (self._is_old(worker) or (worker.due is not None and self.may_recycle))

    def _fork_at(self, number: int) -> float:
        """The time from which this number may be forked."""
        if (wait := self._waits.get(number)) is None:
            return float("-inf")
        return wait.until if self.serving else wait.until_alone

    def _has_failed(self, number: int, now: float) -> None:
        """A worker ended before it served, or could not be forked."""
        wait = self._waits.get(number)
        failures = wait.failures + 1 if wait else 1
        delay = min(FIRST_DELAY * 2.0 ** min(failures - 1, 10), LONGEST_DELAY)
        self._waits[number] = Wait(now + delay, now + FIRST_DELAY, failures)
