"""A thread that notices when the hub does not answer: `--hub-warn`, and deadlines of requests that keep it.

The bell tells: the core counts for how long it has been rung without an answer, and rings it now and then while
requests run. Halfway to the limit this thread looks where the hub's thread is, and at the limit it looks again. If the
same greenlet is still at the same request, that blocks; if not, the hub is busy with many, and there is nothing to say.
A call that keeps the interpreter, too, keeps this thread out: then the delay tells, and the first line that can be seen
is the one after the call. A machine that has no processor for one of the two threads is nobody's fault here, and the
kernel tells.

A request past its deadline that keeps the hub cannot be reached from there: the exception is set in the thread, while
the request's greenlet is the one that runs.

Thread: one of its own, a real one also where threads are greenlets. So nothing here may wait but the core: no lock of
Python's, no `logging`. Without traffic it sleeps.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

import gevent.monkey
from gevent.hub import Hub

from penstock.greenlets import overdue, scheduling, stacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from greenlet import greenlet

    from penstock import _penstock

# A hub that has not answered for so long may keep a request from its deadline (seconds), whatever the option says.
_PATIENCE: Final = 0.1
# How often one looks at a hub that does not answer (seconds).
_STEP: Final = 0.25
# While requests run the bell rings so many times within the limit, by which a blockade may be noticed too late.
_PINGS: Final = 8
# A thread that has run for less than this part of the time, and would like to, has no processor.
_RUNS: Final = 0.25

_start_new_thread = gevent.monkey.get_original("_thread", "start_new_thread")
_allocate_lock = gevent.monkey.get_original("_thread", "allocate_lock")


class Look(NamedTuple):
    """What the hub's thread is at: the outermost frame, which is a greenlet's own, and requests begun and ended.

    at: when. is_runnable, ran: see `scheduling`.
    """

    frame: FrameType | None
    progress: int
    at: float
    is_runnable: bool
    ran: float

    def is_stuck_since(self, before: Look) -> bool:
        """Whether it is at the same as before, and not only for want of a processor."""
        if self.frame is not before.frame or self.progress != before.progress:
            return False
        return not self.is_runnable or self.ran - before.ran >= _RUNS * (self.at - before.at)


class Monitor:
    """Looks after the hub of a server.

    ident, native: the hub's thread, as Python numbers it and as the kernel does. carriers: by post. named: where the
    numbers of requests go that it has named. warn: after how long a hub is reported (seconds); 0: never.
    """

    def __init__(
        self,
        core: _penstock.Hub,
        ident: int,
        native: int,
        carriers: Mapping[int, greenlet],
        named: set[int],
        warn: float,
    ) -> None:
        self._core = core
        self._ident = ident
        self._native = native
        self._carriers = carriers
        self._named = named
        self._warn = warn
        self._first = warn / 2 or _PATIENCE
        # By number of the request: when to try again, and the pause after that.
        self._tried: dict[int, tuple[float, float]] = {}
        self._over = _allocate_lock()

    def start(self) -> None:
        """Starts the thread; it ends with the server."""
        self._core.ping_every(self._warn / _PINGS)
        self._over.acquire()
        _start_new_thread(self._run, ())

    def join(self, seconds: float) -> None:
        """Waits for the thread's end, and blocks the calling one."""
        if self._over.acquire(timeout=seconds):
            self._over.release()

    def _run(self) -> None:
        # As tools show it. At most 15 characters.
        with contextlib.suppress(OSError), open("/proc/thread-self/comm", "w") as file:
            file.write("penstock-watch")
        try:
            while True:
                ring, age, kept = self._blocked(self._first)
                if ring < 0:
                    return
                self._attend(ring, age, kept)
        except BaseException:
            self._core.log("error", f"the monitor of the hub fails\n{traceback.format_exc().rstrip()}")
        finally:
            self._over.release()

    def _blocked(self, until: float, ring: int = 0) -> tuple[int, float, str]:
        """Waits in the core. Also, when this thread was kept out of the interpreter for long: by whom."""
        warn, before = self._warn, scheduling.delay()
        ring, age = self._core.blocked(until, ring)
        if not warn or ring <= 0 or age - until < warn:
            return ring, age, ""
        # Whoever did that has only now returned from it, and will go on as soon as this thread asks for a file.
        who, stack = self._who(), stacks.of_thread(self._ident)
        if age - until - (scheduling.delay() - before) < warn:
            return ring, age, ""
        return ring, age, f"by {who}, in a call that kept the interpreter, and is at\n{stacks.shown(stack)}"

    def _attend(self, ring: int, age: float, kept: str) -> None:
        """A bell has not been answered for some time: until it is."""
        warn = self._warn
        look, since, until = self._look(), 0.0, warn or self._first + _STEP
        blocks, kept_until = "", age
        while True:
            self._end_overdue()
            again, age, kept_now = self._blocked(until, ring)
            if again <= 0:
                break
            if kept_now:
                kept, kept_until = kept_now, age
            latest = self._look()
            if warn and not blocks:
                if age >= warn and latest.is_stuck_since(look):
                    blocks = self._who()
                    said = f"the hub has been blocked for {age - since:.3f} s by {blocks}, which is at\n{self._stack()}"
                    # Others may have run while this thread asked.
                    if self._look().is_stuck_since(look):
                        self._core.log("warning", said)
                    else:
                        blocks = ""
                if not blocks:
                    look, since = latest, age
            until = age + (_STEP if blocks or not warn else warn)
        self._tried.clear()
        if again == 0 and blocks:
            self._core.log("warning", f"the hub was blocked for {age - since:.3f} s by {blocks}")
        elif again == 0 and kept and age >= kept_until:
            # If it was answered before this thread was let in, it was not that call which the bell waited for.
            self._core.log("warning", f"the hub was blocked for {age:.3f} s {kept}")

    def _look(self) -> Look:
        frame, progress = self._outermost(), self._core.progress()
        return Look(frame, progress, time.monotonic(), *scheduling.of_thread(self._native))

    def _outermost(self) -> FrameType | None:
        frame = sys._current_frames().get(self._ident)
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        return frame

    def _stack(self) -> str:
        return stacks.shown(stacks.of_thread(self._ident))

    def _who(self) -> str:
        """Who has the hub's thread now."""
        # Only the one that runs has no frame of its own.
        posts = {post for post, carrier in list(self._carriers.items()) if carrier.gr_frame is None}
        if posts:
            for request in self._core.in_flight():
                if request["post"] in posts:
                    return f"{request['method']} {request['target']} (request {request['id']})"
        frame = self._outermost()
        if frame is not None and frame.f_code is Hub.run.__code__:
            return "a callback of the hub"
        return "a greenlet of the application"

    def _end_overdue(self) -> None:
        """Raises the exception in the greenlet that runs, if its request is past its deadline."""
        now = time.monotonic()
        for late in self._core.overdue():
            post, serial, *_ = late
            carrier = self._carriers.get(post)
            at, pause = self._tried.get(serial, (now, overdue.AGAIN))
            if carrier is None or now < at:
                continue
            # Where it is, before it is told to leave. The hub may take the request up as soon as it is.
            stack = stacks.of_thread(self._ident)
            self._named.add(serial)
            if self._core.interrupt(post, serial, carrier):
                if serial not in self._tried:
                    self._core.log("error", overdue.said(late, stack))
                self._tried[serial] = (now + pause, min(2 * pause, overdue.LONGEST))
            elif serial not in self._tried:
                self._named.discard(serial)
