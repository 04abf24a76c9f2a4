"""How a master gets its workers: it forks them itself, or a mold does (`--preload`, see `mold`).

Thread: the master's only one.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, NoReturn

from tailrace.cli.server_settings import ServerSettings
from tailrace.logs import log
from tailrace.master import workers
from tailrace.master.plan import Plan
from tailrace.master.workers import Child, Ending, Worker
from tailrace.worker import fork
from tailrace.worker.announce import announce_loading
from tailrace.worker.fork import Forked
from tailrace.worker.report import Failure


class Admitted(NamedTuple):
    """This worker was forked, and starts."""

    worker: Worker


class ForkFailed(NamedTuple):
    """This worker could not be forked. why: as a phrase."""

    worker: Worker
    why: str


class Ended(NamedTuple):
    """The process of this worker has ended."""

    worker: Worker
    ending: Ending


class ReloadFailed(NamedTuple):
    """The new code does not load. why: in one line. traceback: what follows in the log."""

    why: str
    traceback: str


class CannotLoad(NamedTuple):
    """The application does not load, and no worker has ever served."""

    why: str
    failure: Failure | None


Event = Admitted | ForkFailed | Ended | ReloadFailed | CannotLoad


class Forker(abc.ABC):
    """Forks the workers of a plan.

    loads: what a reload does, for the log. shares_memory: a worker shares the application's memory with the process
    that forks it.
    """

    loads: str
    shares_memory: bool

    def __init__(self, plan: Plan) -> None:
        self._plan: Final = plan

    @abc.abstractmethod
    def fork(self, made: Worker) -> None:
        """Forks it; or orders that, and its pid is not known before `Admitted`. Raises OSError."""

    @abc.abstractmethod
    def events(self, now: float) -> Iterator[Event]:
        """What has happened since the last call. Each must be handled before the next is asked for."""

    @abc.abstractmethod
    def reload(self, now: float) -> None:
        """All workers are to be replaced by others with the new code, once that can be forked."""

    @property
    @abc.abstractmethod
    def is_reloading(self) -> bool:
        """True until a reload has ended, or its workers are being forked."""

    def begin(self) -> None:
        """The loop of the master begins."""

    def tell_loading(self) -> None:
        """Workers load the application for long: the log says that they do."""

    def retire_former(self) -> None:
        """A reload is complete: the code before is not needed any more."""

    def go_back(self) -> bool:
        """A reload has failed. True: workers with the code before it can be forked."""
        return False

    def gives_up(self, made: Worker) -> bool:
        """Stops waiting for this worker if it is not forked yet."""
        return False

    def descriptors(self) -> list[int]:
        """Those that become readable when there are events."""
        return []

    def wake_at(self, now: float) -> float | None:
        """When there may be events though nothing becomes readable and no child ends; None: never."""
        return None

    def processes(self) -> list[Child]:
        """Those that live beside the workers."""
        return []

    def leave(self, now: float) -> None:
        """No more workers are needed, and nobody but workers may listen."""

    def has_left(self, now: float) -> bool:
        """After `leave`: nobody but workers listens."""
        return True

    def join(self) -> None:
        """At the end of the master: has all `processes` end."""

    def close(self) -> None:
        """In a forked process: closes what is the master's."""

    def _reaped(self, children: Iterable[int]) -> Iterator[tuple[int, Ending]]:
        # A process that loses its parent becomes a child of process 1.
        return workers.reaped(None if os.getpid() == 1 else children)


def become(run: Callable[[], NoReturn]) -> NoReturn:
    """In a forked process: runs what it is for. Never returns into the frames of its parent."""
    try:
        run()
    except Exception:
        log.logger.exception("process %d ended before it could report why; please report it", os.getpid())
    finally:
        os._exit(1)


class Direct(Forker):
    """The master forks its workers, which load the application unless `run` was called with it.

    run: becomes the worker, in the forked process.
    """

    loads = "replacing the workers"

    def __init__(self, plan: Plan, settings: ServerSettings, run: Callable[[Worker, Forked], NoReturn]) -> None:
        super().__init__(plan)
        self._settings = settings
        self._run = run
        self.shares_memory = settings.app is None

    def fork(self, made: Worker) -> None:
        forked = fork.fork()
        if forked.pid == 0:
            made.pid = os.getpid()
            become(lambda: self._run(made, forked))
        made.pid, made.report = forked.pid, forked.pipe

    def events(self, now: float) -> Iterator[Event]:
        known = {each.pid: each for each in self._plan.workers}
        for pid, ending in self._reaped(list(known)):
            if pid in known:
                yield Ended(known.pop(pid), ending)

    def reload(self, now: float) -> None:
        self._plan.reload(now)

    @property
    def is_reloading(self) -> bool:
        return self._plan.is_reloading

    def tell_loading(self) -> None:
        if self._settings.app is not None:
            announce_loading(self._settings)
