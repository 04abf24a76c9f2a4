"""`--preload`: the mold, a process between the master and the workers. It loads the application once, and forks the
workers, which share its memory. The master has no code of the application, so a reload makes another mold.

Master and mold exchange JSON messages over a socket:

- master: `{"fork": [number, place, generation]}`, with the writing end of the pipe for the worker's report, and the
  worker's end of a socket. Over that socket, the worker and the mold both send `{"forked": pid}`, or the mold sends
  `{"failed": reason}`. The worker starts only when the master has answered `{"serve": true}`, and exits if the socket
  is closed instead. So the master knows every worker that accepts requests, even if the mold dies.
- mold: `{"ended": [pid, wait status]}`, before it reaps the worker. Until the master answers `{"reap": pid}`, no other
  process can have that id, so the master signals no stranger.
- master: `{"leave": true}`: the mold ends with its last worker. Answer: `{"left": true}`, once it has closed its
  listening sockets. It also ends when the master has closed the socket.

Thread: the main thread of either process, the only one of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import denial
from tailrace.logs import log
from tailrace.master.forker import Admitted, CannotLoad, Ended, Event, Forker, ForkFailed, ReloadFailed, become
from tailrace.master.plan import FIRST_DELAY, LONGEST_DELAY, SLOW_BOOT_AFTER, Plan
from tailrace.master.workers import Child, Ending, Worker, log_slow
from tailrace.system import forks
from tailrace.worker.announce import announce_loading
from tailrace.worker.fork import Forked, fork
from tailrace.worker.mold import LARGEST

# A mold that has not forked within this time (seconds) hangs, and is killed.
_FORKING: Final = 10.0
# Maximum number of pending forks per mold: more orders might not fit into the socket buffer.
_MAX_FORKING: Final = 16
# A mold that does not report an exited worker within this time (seconds) hangs, and is killed.
_REPORTING: Final = 2.0
# Interval between checks for exited workers that their mold has not reported (seconds).
_LOOK: Final = 1.0
# From one look at workers whose mold has ended to the next (seconds): no signal tells of their end.
_ORPHAN_INTERVAL: Final = 0.25
# Within this time the molds close their listening sockets (seconds).
_LEFT: Final = 0.5
# How long a mold may take to end at the end of the master (seconds), for its exit functions.
_LEAVING: Final = 5.0


@dataclass(eq=False)
class Birth:
    """A worker that a mold forks or has forked. channel: the socket to the worker. began: its start time, as `_began`
    returns it, once its pid is known."""

    worker: Worker
    mold: Mold
    channel: socket.socket
    began: str | None = None

    def answer(self) -> str | None:
        """Why forking it failed; empty if it succeeded, None if there is no answer yet."""
        try:
            said = json.loads(self.channel.recv(LARGEST) or "{}")
        except BlockingIOError:
            return None
        except OSError:
            said = {}
        self.mold.answered = time.monotonic()
        match said:
            case {"forked": int(pid)}:
                self.worker.pid, self.began = pid, _began(pid)
                self.mold.births[pid] = self
                return ""
            case {"failed": why}:
                return str(why)
            case _:
                return f"no answer from {self.mold}"

    def admit(self) -> bool:
        """Lets the worker start. False if it has exited."""
        try:
            return self.channel.send(b'{"serve": true}') > 0
        except OSError:
            return False


@dataclass(eq=False, kw_only=True)
class Mold(Child):
    """A mold as the master sees it.

    channel: the master's end of the socket. births: the running workers that it has forked, by pid.
    answered: when it last answered an order to fork, by the monotonic clock. is_closed: it has closed its end of the
    socket. is_named: the log says that it loads for long. reports_by: when it must have reported the end of a worker,
    by the monotonic clock. has_left: it has closed its listening sockets. is_hung: it was killed because it did not
    respond.
    """

    channel: socket.socket
    births: dict[int, Birth] = field(default_factory=dict)
    answered: float = 0.0
    has_ended: bool = False
    is_closed: bool = False
    is_named: bool = False
    reports_by: float | None = None
    has_left: bool = False
    is_hung: bool = False
    _ended: list[tuple[int, Ending]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"mold (pid {self.pid})"

    @property
    def slow_at(self) -> float:
        """When it has loaded for long, by the monotonic clock."""
        return self.forked + SLOW_BOOT_AFTER

    def fork(self, made: Worker) -> Birth:
        """Asks it to fork a worker. Raises OSError."""
        reader, writer = os.pipe()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            order = json.dumps({"fork": [made.number, made.place, made.generation]}).encode()
            try:
                with theirs:
                    socket.send_fds(self.channel, [order], [writer, theirs.fileno()])
            except OSError:
                ours.close()
                raise
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        ours.setblocking(False)
        forks.keep_from_children(ours)
        made.report = reader
        return Birth(made, self, ours)

    def hangs(self) -> None:
        """Kills the mold because it did not respond in time."""
        if not (self.is_hung or self.has_ended):
            self.is_hung = True
            log.logger.error("%s hangs and is killed", self)
            self.send(signal.SIGKILL)

    def _tell(self, message: bytes) -> None:
        # The mold has exited, or it hangs, reads nothing, and will be killed for that.
        with contextlib.suppress(OSError):
            self.channel.send(message)

    def _read(self) -> None:
        """Reads its pending messages."""
        while not self.is_closed:
            try:
                message = self.channel.recv(LARGEST)
            except BlockingIOError:
                break
            except OSError:
                message = b""
            if not message:
                self.is_closed = True
                break
            match json.loads(message):
                case {"left": True}:
                    self.has_left = True
                case {"ended": [pid, status]}:
                    self.reports_by = None
                    self._ended.append((pid, Ending(status)))

    def ended(self) -> Iterator[tuple[int, Ending]]:
        """The workers that have exited since the last call, and how; the caller must `reap` each.

        The exit of a worker that is not known yet is kept until its pid is.
        """
        self._read()
        found, self._ended = self._ended, []
        for pid, ending in found:
            if pid in self.births:
                yield pid, ending
            else:
                self._ended.append((pid, ending))
        if self.has_ended:
            # The kernel has given its workers another parent, which reaps them.
            for pid, birth in list(self.births.items()):
                if _has_ended(pid, birth.began):
                    yield pid, Ending(None, is_orphan=True)

    def reap(self, pid: int) -> None:
        """The end of this worker is known: the number of its process may be used again."""
        self.forget(pid)
        self._tell(json.dumps({"reap": pid}).encode())

    def forget(self, pid: int) -> Worker | None:
        """This worker has ended: the worker that it was, if it is of this mold."""
        if (birth := self.births.pop(pid, None)) is None:
            return None
        birth.channel.close()
        return birth.worker

    def reap_unknown(self) -> None:
        """Reaps workers that exited before they sent their pid, once no answer is pending."""
        for pid, _ in self._ended:
            self.reap(pid)
        self._ended.clear()

    def look(self, now: float) -> None:
        """Kills the mold if it has not reported an exited worker in time. Such a worker remains a zombie."""
        if self.has_ended or not any(_has_ended(pid, birth.began) for pid, birth in self.births.items()):
            self.reports_by = None
        elif self.reports_by is None:
            self.reports_by = now + _REPORTING
        elif now >= self.reports_by:
            self.hangs()

    def leave(self) -> None:
        """It is to end with its last worker."""
        self._tell(b'{"leave": true}')

    def close(self) -> None:
        """Closes what the master has of it."""
        self.channel.close()
        self.forget_report()
        for each in self.births.values():
            each.channel.close()


class Molds(Forker):
    """The molds of a master. run: becomes a mold, in the forked process; the socket is its end of the channel."""

    loads = "loading the application"
    shares_memory = True

    def __init__(self, plan: Plan, settings: ServerSettings, run: Callable[[socket.socket, Forked], NoReturn]) -> None:
        super().__init__(plan)
        plan.may_fork = self._can_fork
        self._settings = settings
        self._run = run
        self._loading: Mold | None = None
        # The one that forks; and the one before, to which the master goes back if the code of a reload is not good.
        self._current: Mold | None = None
        self._former: Mold | None = None
        self._all: list[Mold] = []
        # The workers that are being forked.
        self._births: dict[Worker, Birth] = {}
        self._look_at = 0.0
        # After `leave`: when the molds are not waited for any longer.
        self._left_by = 0.0
        # The next mold that finishes loading has the code of a reload.
        self._awaits_reload = False
        # When a mold may be made again after one that has ended, and how many have ended in a row.
        self._next_at = 0.0
        self._failures = 0

    def begin(self) -> None:
        announce_loading(self._settings)
        self._load()

    def reload(self, now: float) -> None:
        # Also if the current mold exits before the next one has loaded, or no process can be forked now.
        self._awaits_reload = bool(self._plan.workers or self._current)
        self._load()

    @property
    def is_reloading(self) -> bool:
        return self._loading is not None or self._awaits_reload

    def retire_former(self) -> None:
        if self._former is not None:
            self._former.leave()
            self._former = None

    def go_back(self) -> bool:
        if not self._awaits_reload:
            self._stop_loading()
        former, self._former = self._former, None
        if former is None or former.has_ended:
            return False
        if self._current is not None:
            self._current.leave()
        self._current = former
        return True

    def fork(self, made: Worker) -> None:
        assert self._current is not None
        self._births[made] = self._current.fork(made)

    def gives_up(self, made: Worker) -> bool:
        if (birth := self._births.pop(made, None)) is None:
            return False
        # Its process will find its socket closed.
        birth.channel.close()
        return True

    def events(self, now: float) -> Iterator[Event]:
        self._kill_hung(now)
        yield from self._answers(now)
        if not self._plan.is_stopping:
            self._tend(now)
        yield from self._ends(now)

    def wake_at(self, now: float) -> float | None:
        times = []
        if any(each.has_ended for each in self._all):
            # Only a look at the workers of such a mold tells of their end.
            times.append(now + _ORPHAN_INTERVAL)
        if self._births or any(each.births for each in self._all):
            times.append(self._look_at)
        if not self.has_left(now):
            times.append(self._left_by)
        if not self._plan.is_stopping:
            if self._loading is not None and not self._loading.is_named:
                times.append(self._loading.slow_at)
            if self._lacks_mold:
                times.append(max(now, self._next_at))
        return min(times, default=None)

    def leave(self, now: float) -> None:
        self._stop_loading()
        self._left_by = now + _LEFT
        for each in self._all:
            each.leave()

    def has_left(self, now: float) -> bool:
        """Also True after _LEFT, whatever the molds do."""
        return now >= self._left_by or all(each.has_left or each.is_closed or each.has_ended for each in self._all)

    def join(self) -> None:
        """One that does not end in time is killed."""
        self._stop_loading()
        for each in self._all:
            each.channel.close()
        end = time.monotonic() + _LEAVING
        while left := [each for each in self._all if not each.has_ended]:
            for each in left:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(each.pid, os.WNOHANG) == (0, 0):
                        if time.monotonic() < end:
                            time.sleep(0.005)
                            break
                        each.send(signal.SIGKILL)
                        os.waitpid(each.pid, 0)
                each.has_ended = True

    def close(self) -> None:
        for each in self._all:
            each.close()
        for birth in self._births.values():
            birth.channel.close()

    def descriptors(self) -> list[int]:
        found = [each.channel.fileno() for each in self._all if not each.is_closed]
        found += [birth.channel.fileno() for birth in self._births.values()]
        return found + ([self._loading.report] if self._loading and self._loading.report >= 0 else [])

    def processes(self) -> list[Child]:
        return [each for each in self._all if not each.has_ended]

    def _can_fork(self) -> bool:
        """There is a mold, and it has few pending forks."""
        return self._current is not None and len(self._births) < _MAX_FORKING

    @property
    def _lacks_mold(self) -> bool:
        return self._loading is None and (self._current is None or self._awaits_reload)

    def _load(self) -> None:
        """Has a mold load the application; one that is still loading is killed. Until one has, nothing is forked."""
        self._stop_loading()
        try:
            self._loading = self._start(time.monotonic())
        except OSError as error:
            log.logger.error("cannot fork a mold: %s; trying again", denial(error))
            self._next_at = time.monotonic() + FIRST_DELAY
        else:
            self._all.append(self._loading)

    def _start(self, now: float) -> Mold:
        """Forks a mold. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            forked = fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if forked.pid == 0:
            ours.close()
            become(lambda: self._run(theirs, forked))
        theirs.close()
        ours.setblocking(False)
        forks.keep_from_children(ours)
        return Mold(forked.pid, now, forked.pipe, channel=ours)

    def _stop_loading(self) -> None:
        """Kills the mold that loads: its code may hang."""
        if self._loading is not None:
            self._loading.send(signal.SIGKILL)
            self._loading = None

    def _tend(self, now: float) -> None:
        """Forks with the mold that has loaded the application, and makes one where there is none."""
        if (loading := self._loading) is not None and loading.read_report():
            log.logger.info("%s has loaded the application in %.2f s", loading, now - loading.forked)
            self._adopt(loading)
            self._failures = 0
            if self._awaits_reload:
                self._awaits_reload = False
                self._plan.reload(now)
        elif self._lacks_mold and now >= self._next_at:
            self._load()
        elif loading is not None and not loading.is_named and now >= loading.slow_at:
            loading.is_named = True
            log_slow(loading, SLOW_BOOT_AFTER)

    def _adopt(self, loaded: Mold) -> None:
        """This mold is the current one. The one before stays until `retire_former`."""
        if self._current is not None:
            if self._former is None:
                self._former = self._current
            else:
                self._current.leave()
        self._current, self._loading = loaded, None

    def _answers(self, now: float) -> Iterator[Event]:
        """Admits the workers that molds have forked."""
        for made, birth in list(self._births.items()):
            failed = birth.answer()
            if failed is None and birth.mold.has_ended and now >= made.forked + _FORKING:
                # The new process hangs before it sends its pid. It exits when it finds the socket closed.
                failed = f"{birth.mold} has ended"
            if failed is None:
                continue
            del self._births[made]
            if failed:
                birth.channel.close()
                yield ForkFailed(made, failed)
            elif not made.is_booting:
                # It has been asked to exit in the meantime.
                birth.channel.close()
            elif birth.admit():
                yield Admitted(made)

    def _kill_hung(self, now: float) -> None:
        """Kills each mold that has not forked a worker, or not reported an exited one, in time."""
        for made, birth in self._births.items():
            if now >= max(made.forked, birth.mold.answered) + _FORKING:
                birth.mold.hangs()
        if now >= self._look_at:
            self._look_at = now + _LOOK
            busy = self._busy
            for each in self._all:
                # A mold that is forking has more time, and reports exited workers afterwards.
                if each not in busy:
                    each.look(now)

    @property
    def _busy(self) -> set[Mold]:
        """Those that are forking."""
        return {birth.mold for birth in self._births.values()}

    def _ends(self, now: float) -> Iterator[Event]:
        """The ends of molds, which the master reaps, and of workers, which their molds reap."""
        for pid, ending in self._reaped([each.pid for each in self._all if not each.has_ended]):
            for each in self._all:
                if (orphan := each.forget(pid)) is not None:
                    # Its mold has ended, and it was a child of process 1.
                    yield Ended(orphan, ending)
                elif each.pid == pid and not each.has_ended:
                    each.has_ended = True
                    each.read_report()
                    yield from self._has_ended(each, ending, now)
        for each in list(self._all):
            for pid, ending in each.ended():
                worker = each.births[pid].worker
                yield Ended(worker, ending)
                each.reap(pid)
            if each in self._busy:
                continue
            each.reap_unknown()
            if each.has_ended and not each.births:
                each.close()
                self._all.remove(each)

    def _has_ended(self, ended: Mold, ending: Ending, now: float) -> Iterator[Event]:
        was_loading, was_current = self._loading is ended, self._current is ended
        if was_loading:
            self._loading = None
        if was_current:
            self._current = None
        if self._plan.is_stopping or not (was_loading or was_current):
            return
        why, traceback = ended.explained(ending)
        if was_loading and self._current is not None:
            self._awaits_reload = False
            yield ReloadFailed(why, traceback)
        elif was_loading and not self._plan.has_served:
            yield CannotLoad(why, ended.failure)
        else:
            delay = min(FIRST_DELAY * 2.0 ** min(self._failures, 10), LONGEST_DELAY)
            log.logger.error("%s; making another one in %g s%s", why, delay, traceback)
            self._next_at = now + delay
            self._failures += 1


def _began(pid: int) -> str | None:
    """The start time of a process by the kernel's clock; empty if there is no such process, or only a zombie. None if
    it cannot be determined now, for example without free file descriptors."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _has_ended(pid: int, began: str | None) -> bool:
    """Whether the process that started at this time is known to have exited."""
    now = _began(pid)
    return now == "" or (None not in (now, began) and now != began)
