"""A thread that detects when the hub is blocked: for the log, and for deadlines of requests that block the hub.

The core measures for how long a wakeup has not been answered, and while requests run it wakes the hub regularly. After
half of the limit this thread notes where the hub's thread is, and at the limit it compares. If the same greenlet still
runs the same request, that greenlet blocks the hub, and is reported; if not, the hub is busy with many greenlets, and
nothing is reported.

A call that also holds the interpreter prevents this thread from running. Then the delay of this thread shows that the
hub was blocked, and the stack is that after the call. A delay for lack of a processor is not reported; the kernel
counts for how long a thread waited for one.

There is at most one report a second, so that a hub which is blocked repeatedly does not fill the log. The next report
has the number of those that were left out.

A request past its deadline that blocks the hub cannot be interrupted by the hub. The exception is set in the hub's
thread instead, while the request's greenlet is the one that runs.

Thread: one of its own, a native one also where threads are patched to be greenlets. So nothing here may wait, except in
the core: no lock of Python's, no `logging`. Without traffic the thread sleeps.
"""

from __future__ import annotations

import sys
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

import gevent.monkey
from gevent.hub import Hub

from tailrace.greenlets import overdue, scheduling, stacks
from tailrace.system.title import name_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from greenlet import greenlet

    from tailrace._tailrace import GreenletRunner as Core

# A greenlet that blocks the hub for this long is reported (seconds).
WARN: Final = 0.1
# Time from one check of a blocked hub to the next (seconds).
_STEP: Final = 0.25
# While requests run the hub is woken this many times within the limit: the detection is late by at most one such part.
_PINGS: Final = 8
# The shortest time between two reports (seconds).
_PAUSE: Final = 1.0
_AT: Final = "which is at (innermost first)"
_REMEDY: Final = (
    "  meanwhile no other greenlet runs: use a library that cooperates with gevent, or run the call in a thread, with "
    "gevent.get_hub().threadpool.apply(function, arguments)"
)
_REMEDY_IN_C: Final = (
    "  meanwhile no other thread of the process runs: run the call in another process, or split it into shorter calls"
)
# A runnable thread that ran for less than this part of the time waited for a processor.
_RUNS: Final = 0.25

_start_new_thread = gevent.monkey.get_original("_thread", "start_new_thread")
_allocate_lock = gevent.monkey.get_original("_thread", "allocate_lock")


class Look(NamedTuple):
    """Where the hub's thread is: the outermost frame, which tells greenlets apart, and how many requests began and
    ended.

    at: the time of the look. is_runnable, ran: see `scheduling`.
    """

    frame: FrameType | None
    progress: int
    at: float
    is_runnable: bool
    ran: float

    def is_stuck_since(self, before: Look) -> bool:
        """Whether the same greenlet still runs the same request, although the thread had a processor."""
        if self.frame is not before.frame or self.progress != before.progress:
            return False
        return not self.is_runnable or self.ran - before.ran >= _RUNS * (self.at - before.at)


class Monitor:
    """Watches the hub of a server.

    ident, native: the hub's thread, as Python numbers it and as the kernel does. greenlets: the worker greenlets by
    runner slot. named: gets the numbers of overdue requests that this thread has logged.
    """

    def __init__(
        self,
        core: Core,
        ident: int,
        native: int,
        greenlets: Mapping[int, greenlet],
        named: set[int],
    ) -> None:
        self._core = core
        self._ident = ident
        self._native = native
        self._greenlets = greenlets
        self._named = named
        # By the number of the overdue request: when to try again, and the pause after that.
        self._tried: dict[int, tuple[float, float]] = {}
        self._over = _allocate_lock()
        # When the next report may be made; how many times since the last one the hub was blocked without a report, and
        # for how long altogether (seconds).
        self._next_report = 0.0
        self._unreported = 0
        self._unreported_for = 0.0

    def start(self) -> None:
        """Starts the thread; it ends with the server."""
        self._core.ping_every(WARN / _PINGS)
        self._over.acquire()
        _start_new_thread(self._run, ())

    def silence(self) -> None:
        """Reports no blocked hub any more: it does not run again."""
        self._next_report = float("inf")

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread. Blocks the calling thread, not only its greenlet."""
        if self._over.acquire(timeout=seconds):
            self._over.release()

    def _run(self) -> None:
        name_thread("tailrace-watch")
        try:
            while True:
                wakeup, age, kept = self._blocked(WARN / 2)
                if wakeup < 0:
                    return
                self._follow(wakeup, age, kept)
        except BaseException:
            self._core.log(
                "error",
                "the hub monitor ended with an exception, so a blocked hub is no longer logged; please report it\n"
                + traceback.format_exc().rstrip(),
            )
        finally:
            self._over.release()

    def _blocked(self, until: float, wakeup: int = 0) -> tuple[int, float, str]:
        """Waits in the core, see `GreenletRunner.blocked`.

        Also returns what to say when this thread could not run meanwhile, or ''.
        """
        before = scheduling.delay()
        wakeup, age = self._core.blocked(until, wakeup)
        if wakeup <= 0 or age - until < WARN:
            return wakeup, age, ""
        # Before `delay`: the call that held the interpreter has only now returned, and the greenlet goes on as soon as
        # this thread reads a file.
        who, stack = self._who(), stacks.of_thread(self._ident)
        if age - until - (scheduling.delay() - before) < WARN:
            return wakeup, age, ""
        shown = stacks.shown(stack, innermost_first=True)
        return wakeup, age, f"by {who}, in a call that held the interpreter, {_AT}\n{shown}\n{_REMEDY_IN_C}"

    def _follow(self, wakeup: int, age: float, kept: str) -> None:
        """Checks the hub repeatedly until it answers this wakeup, and reports what blocks it."""
        look, since, until = self._look(), 0.0, WARN
        blocks, kept_until, is_left_out = "", age, False
        while True:
            self._end_overdue()
            again, age, kept_now = self._blocked(until, wakeup)
            if again <= 0:
                break
            if kept_now:
                kept, kept_until = kept_now, age
            latest = self._look()
            if not blocks:
                is_stuck = latest.is_stuck_since(look)
                # If no report is allowed now, there may be one later, if the hub is still blocked.
                is_left_out = is_stuck and age >= WARN and not self._may_report()
                if is_stuck and age >= WARN and not is_left_out:
                    blocks = self._who()
                    said = f"the hub has been blocked for {age - since:.3f} s by {blocks}, {_AT}\n{self._stack()}"
                    # Others may have run while this thread read the stack.
                    if self._look().is_stuck_since(look):
                        self._report(f"{said}\n{_REMEDY}")
                    else:
                        blocks = ""
                if not blocks and not is_left_out:
                    look, since = latest, age
            until = age + (_STEP if blocks else WARN)
        self._tried.clear()
        if again != 0:
            return
        if blocks:
            self._core.log("warning", f"the hub was blocked for {age - since:.3f} s by {blocks}")
        elif kept and age >= kept_until and self._may_report():
            # Otherwise the hub answered before this thread could run again, so that call was not what blocked it.
            self._report(f"the hub was blocked for {age:.3f} s {kept}")
        elif is_left_out or (kept and age >= kept_until):
            self._unreported += 1
            self._unreported_for += age - since

    def _may_report(self) -> bool:
        return time.monotonic() >= self._next_report

    def _report(self, text: str) -> None:
        if self._unreported:
            times = "once" if self._unreported == 1 else f"{self._unreported} times"
            text += f"\n  and {times} since the last report, for {self._unreported_for:.3f} s in all"
        self._next_report = time.monotonic() + _PAUSE
        self._unreported, self._unreported_for = 0, 0.0
        self._core.log("warning", text)

    def _look(self) -> Look:
        frame, progress = self._outermost(), self._core.progress()
        return Look(frame, progress, time.monotonic(), *scheduling.of_thread(self._native))

    def _outermost(self) -> FrameType | None:
        frame = sys._current_frames().get(self._ident)
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        return frame

    def _stack(self) -> str:
        return stacks.shown(stacks.of_thread(self._ident), innermost_first=True)

    def _who(self) -> str:
        """What runs on the hub's thread now, as words for the log."""
        # Only the greenlet that runs has no frame of its own.
        slots = {slot for slot, each in list(self._greenlets.items()) if each.gr_frame is None}
        if slots:
            for request in self._core.in_flight():
                if request["slot"] in slots:
                    id_text = f", id {request['request_id']}" if request["request_id"] else ""
                    return f"{request['method']} {request['target']} (request {request['id']}{id_text})"
        frame = self._outermost()
        if frame is not None and frame.f_code is Hub.run.__code__:
            return "a callback of the hub"
        return "a greenlet of the application"

    def _end_overdue(self) -> None:
        """Raises RequestTimeout in the greenlet that runs, if its request is past its deadline."""
        now = time.monotonic()
        for late in self._core.overdue():
            slot, serial, *_ = late
            runner = self._greenlets.get(slot)
            at, pause = self._tried.get(serial, (now, overdue.AGAIN))
            if runner is None or now < at:
                continue
            # The stack is read before the exception is raised. The number is noted before it, too: the hub, which would
            # also log the request, runs next.
            stack = stacks.of_thread(self._ident)
            self._named.add(serial)
            if self._core.interrupt(slot, serial, runner):
                if serial not in self._tried:
                    self._core.log("error", overdue.said(late, stack))
                self._tried[serial] = (now + pause, min(2 * pause, overdue.LONGEST))
            elif serial not in self._tried:
                self._named.discard(serial)
