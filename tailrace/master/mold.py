"""`--preload`: the mold, a process between the master and the workers. It loads the application once, and forks the
workers, which share its memory. The master has no code of the application, so a reload makes another mold.

Master and mold exchange JSON messages over a socket:

- master: `{"fork": [number, place, generation]}`. Answer: `{"forked": pid}` with the reading end of the pipe for the
  worker's report, or `{"failed": reason}`.
- With `--refork`, the order to fork comes with the worker's end of another socket. The master sends `{"mold": true}`
  to a worker that drains, with the listening sockets. The worker answers `{"loaded": true}` when it has ended its
  requests, and is a mold from then on. Master to the former mold: `{"disown": pid}`: this worker is its own no longer.
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
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from tailrace.logs import log
from tailrace.master.plan import SLOW_BOOT_AFTER
from tailrace.master.workers import Ending, Worker
from tailrace.system import forks, sockets
from tailrace.worker.fork import Forked, fork
from tailrace.worker.mold import LARGEST

# A mold that has not forked within this time (seconds) hangs, and is killed.
_FORKING: Final = 10.0
# A mold that has not reported the end of a killed worker within this time (seconds) hangs, and is killed.
_REPORTING: Final = 5.0
# How long the master waits for the molds to close their listening sockets (seconds).
_LEFT: Final = 0.5
# How long a mold may take to end at the end of the master (seconds), for its exit functions.
_LEAVING: Final = 5.0


@dataclass(eq=False)
class Mold:
    """A mold as the master sees it.

    process: its process and its report, like those of a worker. channel: the master's end of the socket. children: the
    workers that it has forked and that have not ended, each with the time at which it began. is_closed: it has closed
    its end of the socket. is_named: the log says that it loads for long. reports_by: when it must have
    reported the end of a worker, by the monotonic clock. began: of one that was a worker, as `_began` gives it; such a
    mold is no child of the master, whom only the socket tells of its end. is_promoted: it has ended its requests.
    """

    process: Worker
    channel: socket.socket
    children: dict[int, str] = field(default_factory=dict)
    has_ended: bool = False
    is_closed: bool = False
    is_named: bool = False
    reports_by: float | None = None
    began: str = ""
    is_promoted: bool = False
    _ended: list[tuple[int, Ending]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"mold (pid {self.process.pid})"

    def is_running(self) -> bool:
        """At the end of the master: whether the process lives; reaps it. Raises ChildProcessError."""
        if self.began:
            return _began(self.process.pid) == self.began
        return os.waitpid(self.process.pid, os.WNOHANG) == (0, 0)

    @property
    def slow_at(self) -> float:
        """When it has loaded for long, by the monotonic clock."""
        return self.process.forked + SLOW_BOOT_AFTER

    def fork(self, number: int, place: int, generation: int, channel: socket.socket | None = None) -> Forked:
        """Has it fork a worker. channel: what the worker gets. Raises OSError."""
        order = json.dumps({"fork": [number, place, generation]}).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.channel, [order], [] if channel is None else [channel.fileno()])
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        while poll.poll(int(_FORKING * 1000)):
            said, descriptors = self._read()
            if "forked" in said:
                (pipe,) = descriptors
                os.set_blocking(pipe, False)
                pid = said["forked"]
                self.children[pid] = _began(pid)
                return Forked(pid, pipe)
            if "failed" in said:
                raise OSError(0, said["failed"])
            if not said and self.is_closed:
                raise OSError(0, f"{self} has ended")
        self.process.send(signal.SIGKILL)
        raise OSError(0, f"{self} hangs and is killed")

    def _send(self, message: bytes) -> None:
        # BrokenPipeError: it has ended, and so is no longer asked.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(message)

    def _read(self) -> tuple[dict[str, Any], list[int]]:
        """The next message that is no report of an end; those are kept. Empty: there is none."""
        while not self.is_closed:
            try:
                message, descriptors, _, _ = socket.recv_fds(self.channel, LARGEST, 1)
            except BlockingIOError:
                break
            except OSError:
                message = b""
            if not message:
                self.is_closed = True
                break
            said: dict[str, Any] = json.loads(message)
            if "loaded" in said:
                self.is_promoted = True
            elif (ended := said.get("ended")) is None:
                return said, descriptors
            else:
                self._ended.append((ended[0], Ending(ended[1])))
        return {}, []

    def ended(self) -> Iterator[tuple[int, Ending]]:
        """The workers that have ended since the last call, and how; the caller must `reap` each."""
        self._read()
        found, self._ended = self._ended, []
        if found:
            self.reports_by = None
        yield from found
        if self.has_ended:
            # The kernel has given its workers another parent, which reaps them.
            yield from [
                (pid, Ending(None, is_orphan=True))
                for pid, began in self.children.items()
                if not began or _began(pid) != began
            ]

    def reap(self, pid: int) -> None:
        """The end of this worker is known: the number of its process may be used again."""
        if self.children.pop(pid, None) is not None:
            self._send(json.dumps({"reap": pid}).encode())

    def disown(self, pid: int) -> None:
        """This process is no worker of it any more."""
        if self.children.pop(pid, None) is not None:
            self._send(json.dumps({"disown": pid}).encode())

    def leave(self) -> None:
        """It is to end with its last worker."""
        self._send(b'{"leave": true}')

    def await_left(self, until: float) -> None:
        """Waits until it has closed its listening sockets after `leave`, or this time by the monotonic clock."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        while not self.is_closed and (left := until - time.monotonic()) > 0 and poll.poll(int(left * 1000) + 1):
            if "left" in self._read()[0]:
                break


class Molds:
    """The molds of a master. start: forks one."""

    def __init__(self, start: Callable[[], Mold]) -> None:
        self._start = start
        self.loading: Mold | None = None
        # The one that forks; and the one before, to which the master goes back if the code of a reload is not good.
        self.current: Mold | None = None
        # A worker that drains, and is to be the next one.
        self.promoted: Mold | None = None
        self._former: Mold | None = None
        self._all: list[Mold] = []

    def load(self) -> None:
        """Starts another mold. One that is still loading is killed. Raises OSError."""
        self.stop_loading()
        self.loading = self._start()
        self._all.append(self.loading)

    def stop_loading(self) -> None:
        """Kills the mold that loads: its code may hang."""
        if self.loading is not None:
            self.loading.process.send(signal.SIGKILL)
            self.loading = None

    def adopt(self) -> None:
        """The mold that has loaded is the current one. The one before stays until `settle`."""
        if self.current is not None:
            if self._former is None:
                self._former = self.current
            else:
                self.current.leave()
        self.current, self.loading = self.loading, None

    def promote(self, worker: Worker, listeners: list[sockets.Listener]) -> None:
        """This worker, which is told to drain, is to be a mold afterwards."""
        channel, worker.channel = worker.channel, None
        assert channel is not None
        process = Worker(0, -1, 0, worker.pid, worker.forked)
        self.promoted = Mold(process, channel, began=_began(worker.pid))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(channel, [b'{"mold": true}'], [each.socket.fileno() for each in listeners])

    def has_promoted(self) -> bool:
        """True when the worker of `promote` has ended its requests."""
        if self.promoted is not None:
            next(self.promoted.ended(), None)
        return self.promoted is not None and self.promoted.is_promoted

    def adopt_promoted(self) -> None:
        """That worker is the current mold. The one before forks no more."""
        assert self.promoted is not None
        for each in self._all:
            each.disown(self.promoted.process.pid)
        if self.current is not None:
            self.current.leave()
        self._all.append(self.promoted)
        self.current, self.promoted = self.promoted, None

    def give_up_promoted(self) -> None:
        """Its worker has ended, or is not needed as a mold: it ends like any other."""
        if self.promoted is not None:
            self.promoted.channel.close()
            self.promoted = None

    def lost(self) -> Iterator[Mold]:
        """Those of which only the socket tells that they have ended, once each."""
        for each in self._all:
            if each.began and each.is_closed and not each.has_ended:
                each.has_ended = True
                yield each

    def settle(self) -> None:
        """The code of the current mold is good: none before it is needed."""
        if self._former is not None:
            self._former.leave()
            self._former = None

    def go_back(self) -> bool:
        """The code of the current mold is not good: the one before forks again. False: that one has ended."""
        former, self._former = self._former, None
        if former is None or former.has_ended:
            return False
        if self.current is not None:
            self.current.leave()
        self.current = former
        return True

    def killed(self, pid: int, now: float) -> None:
        """This worker was sent SIGKILL: its mold is to report the end."""
        for each in self._all:
            if pid in each.children and each.reports_by is None:
                each.reports_by = now + _REPORTING

    def kill_hung(self, now: float) -> None:
        """Kills each mold that has not reported in time."""
        for each in self._all:
            if each.reports_by is not None and now >= each.reports_by and not each.has_ended:
                log.logger.error("%s hangs and is killed", each)
                each.reports_by = None
                each.process.send(signal.SIGKILL)

    def wake_at(self) -> float | None:
        """When `kill_hung` may have something to do; None: never."""
        return min((each.reports_by for each in self._all if each.reports_by is not None), default=None)

    def leave(self) -> None:
        """No more workers are needed. Waits until no mold listens, so that the last worker ends the listening."""
        self.stop_loading()
        self.give_up_promoted()
        until = time.monotonic() + _LEFT
        for each in self._all:
            each.leave()
        for each in self._all:
            if not each.has_ended:
                each.await_left(until)

    def join(self) -> None:
        """Has all end, at the end of the master; one that does not is killed."""
        self.stop_loading()
        for each in self._all:
            each.channel.close()
        end = time.monotonic() + _LEAVING
        while left := [each for each in self._all if not each.has_ended]:
            for each in left:
                with contextlib.suppress(ChildProcessError):
                    if each.is_running():
                        if time.monotonic() < end:
                            time.sleep(0.005)
                            break
                        each.process.send(signal.SIGKILL)
                        if not each.began:
                            os.waitpid(each.process.pid, 0)
                each.has_ended = True

    def close(self) -> None:
        """In a forked process: closes what is the master's."""
        for each in self._all:
            each.channel.close()
            each.process.forget_report()
        self.give_up_promoted()

    def descriptors(self) -> list[int]:
        """Those that become readable when there are events."""
        all_of_them = [*self._all, *([self.promoted] if self.promoted else [])]
        found = [each.channel.fileno() for each in all_of_them if not each.is_closed]
        return found + ([self.loading.process.report] if self.loading and self.loading.process.report >= 0 else [])

    def processes(self) -> list[Worker]:
        """Those of all molds that have not ended."""
        return [each.process for each in self._all if not each.has_ended]

    def children(self) -> list[int]:
        """The process ids of those that are children of the master."""
        return [each.process.pid for each in self._all if not each.has_ended and not each.began]

    def has_loaded(self) -> bool:
        """True once, when the mold that loads has done that."""
        return self.loading is not None and self.loading.process.read_report()

    def has_ended(self, pid: int) -> Mold | None:
        """This process has ended: the mold that it was."""
        ended = next((each for each in self._all if each.process.pid == pid and not each.has_ended), None)
        if ended is not None:
            ended.has_ended = True
            ended.process.read_report()
        return ended

    def forget(self, ended: Mold) -> None:
        """It forks no more."""
        if self.loading is ended:
            self.loading = None
        if self.current is ended:
            self.current = None

    def ended_workers(self) -> Iterator[tuple[int, Ending]]:
        """The workers that have ended since the last call."""
        for each in list(self._all):
            for pid, ending in each.ended():
                yield pid, ending
                each.reap(pid)
            if each.has_ended and not each.children:
                each.process.forget_report()
                each.channel.close()
                self._all.remove(each)

    def reaped(self, pid: int) -> None:
        """The end of a worker is known otherwise: its mold had ended, and it was a child of the master."""
        for each in self._all:
            each.children.pop(pid, None)

    @property
    def has_orphans(self) -> bool:
        """True while workers live whose mold has ended: only a look at them tells of their end."""
        return any(each.has_ended for each in self._all)


def _began(pid: int) -> str:
    """When a process began, by the clock of the kernel; empty: there is none, or it has ended and is not reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def start(run: Callable[[socket.socket, Forked], NoReturn], now: float) -> Mold:
    """Forks a mold. run: called in it. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        forked = fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if forked.pid == 0:
        try:
            ours.close()
            run(theirs, forked)
        finally:
            os._exit(1)
    theirs.close()
    ours.setblocking(False)
    forks.keep_from_children(ours)
    return Mold(Worker(0, -1, 0, forked.pid, now, report=forked.pipe), ours)
