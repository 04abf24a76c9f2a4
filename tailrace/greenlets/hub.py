"""The worker greenlets of one server: the greenlets that requests run in, and how they are switched.

The I/O thread makes a descriptor readable, the wakeup, when requests are complete, when a greenlet that waits may go
on, or when a request is past its deadline. gevent's loop then calls `_on_wakeup` in the hub, which switches to the
greenlets concerned, and to worker greenlets while requests wait.

A worker greenlet takes requests from the core as long as it is as good as a new greenlet: no other object refers to it,
and nothing is stored on it. When there are no more requests it parks until the next wakeup. Otherwise it ends, and what
is stored on it is freed. So data that is local to a greenlet is local to a request, although quick requests share a
greenlet.

`pause` is how the core waits: for room in a response, for a piece of a request's body. Its tickets are unique in the
process, so all servers and hubs share one table.

Thread: the hub's. `_on_wakeup` and the timers run in the hub's greenlet, where nothing may wait or raise; `_body` runs
in a worker greenlet from its beginning to its end. The monitor's thread reads `greenlets` and writes `named`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent import get_hub
from gevent.hub import Waiter
from greenlet import GreenletExit, getcurrent, gettrace, greenlet, settrace

from tailrace._tailrace import ClientDisconnected, GreenletRunner, PanicException, RequestTimeout, note_switch
from tailrace.greenlets import overdue, stacks
from tailrace.greenlets.monitor import Monitor

if TYPE_CHECKING:
    from tailrace._tailrace import Overdue, Server

READABLE: Final = 1
# At most this many worker greenlets park; further ones end. A parked one takes about 20 KiB of memory; creating one
# takes as much time as a small request. Without parking, the rate of 100 clients whose requests sleep for 10 ms would
# be 5 % lower. The number is high because thousands of requests may begin at once.
SPARE: Final = 1024
# The numbers of references that a parked worker greenlet may have if no other code refers to it: tried one after the
# other, since the number depends on the version of Python.
_REFERENCES: Final = range(1, 64)
# After an error the rest of the work is tried again after this time (seconds). The key of its timer is a number that no
# request has.
_AFTER_ERROR: Final = 0.1
_NO_REQUEST: Final = 0

_waiting: dict[int, Waiter[bool]] = {}
# Those that serve in this process.
living: list[WorkerGreenlets] = []


class WorkerGreenlet(greenlet):
    """A greenlet that runs requests. The type distinguishes it from greenlets of the application."""


def pause(ticket: int, seconds: float | None) -> bool:
    """Waits, while other greenlets run, until the core returns the ticket; False when the seconds have passed before.

    Called by the core in any greenlet of a hub's thread. An exception that is thrown into the greenlet meanwhile is
    raised from here.
    """
    hub = get_hub()
    waiter: Waiter[bool] = Waiter(hub)
    _waiting[ticket] = waiter
    timer = None
    try:
        if seconds is not None:
            timer = hub.loop.timer(seconds)
            # Counted from now and not from when the loop last read the clock.
            timer.start(waiter.switch, False, update=True)
        return waiter.get()
    finally:
        _waiting.pop(ticket, None)
        if timer is not None:
            timer.close()


def keep_running() -> None:
    """On this thread's hub, SystemExit ends the greenlet that raises it and nothing else, as it does in a thread.

    SystemError still ends the worker, as it does by default in gevent: an extension in C is broken, and a new worker is
    better. A panic of the core ends it, too.
    """
    get_hub().SYSTEM_ERROR = (KeyboardInterrupt, SystemError, PanicException)


def _where(greenlets: Mapping[int, greenlet], ident: int, slot: int) -> str:
    """The stack of the worker greenlet in a runner slot, for the log. ident: of the hub's thread. Any thread."""
    runner = greenlets.get(slot)
    frame = runner.gr_frame if runner is not None else None
    # The one that runs has no frame of its own.
    return stacks.shown(stacks.of_thread(ident) if frame is None else stacks.of(frame))


# What followed the switches before, such as a profiler.
_profiler: Callable[..., object] | None = None


def _note_for_both(event: str, greenlets: tuple[greenlet, greenlet]) -> None:
    note_switch(event, greenlets)
    if _profiler is not None:
        _profiler(event, greenlets)


def _note_switches() -> None:
    """Has the core know which greenlet of the calling thread runs."""
    global _profiler
    before = gettrace()
    if before is None:
        settrace(note_switch)
    elif before not in (note_switch, _note_for_both):
        _profiler = before
        settrace(_note_for_both)


def _ignore_switches() -> None:
    """Ends that, and leaves the profiler alone."""
    tracer = gettrace()
    if tracer is note_switch:
        settrace(None)
    elif tracer is _note_for_both:
        settrace(_profiler)


class WorkerGreenlets:
    """The worker greenlets of one server, on the hub of the calling thread.

    on_end: called in the hub when the server has ended. is_embedded: the main greenlet is a program's. A
    KeyboardInterrupt that is raised in a request is then raised in the main greenlet, too, as gevent does when it is
    raised in other greenlets.
    """

    def __init__(self, server: Server, on_end: Callable[[], object], *, is_embedded: bool = False) -> None:
        self.hub = get_hub()
        self.server = server
        self.core = server.greenlet_runner(pause)
        self.thread = threading.get_native_id()
        # By runner slot: all that have not ended.
        self.greenlets: dict[int, WorkerGreenlet] = {}
        self.core.explain_by(functools.partial(_where, self.greenlets, self.hub.thread_ident))
        # Numbers of requests past their deadline that the monitor has named in the log.
        self.named: set[int] = set()
        self.made = 0
        self._parked: dict[greenlet, None] = {}
        # How many references a parked greenlet has if no other code refers to it; 0: not counted yet.
        self._references = 0
        # By the number of the request that is past its deadline.
        self._timers: dict[int, Any] = {}
        # What `take` has returned, and what of it is still to be done.
        self._taken: list[tuple[list[int], list[Overdue], list[tuple[int, int, bool]], bool]] = []
        self._tickets: deque[int] = deque()
        self._late: deque[Overdue] = deque()
        self._leaving: deque[tuple[int, int, bool]] = deque()
        self._is_over = False
        self._has_ended = False
        self._on_end = on_end
        self.is_embedded = is_embedded
        self._wakeup: Any = self.hub.loop.io(self.core.fileno(), READABLE)
        self.monitor = Monitor(self.core, self.hub.thread_ident, self.thread, self.greenlets, self.named)

    def start(self) -> None:
        """Begins to serve. Raises OSError."""
        self.core.start()
        _note_switches()
        living.append(self)
        self._wakeup.start(self._on_wakeup)
        self.monitor.start()

    @property
    def parked(self) -> int:
        """How many worker greenlets have nothing to do."""
        return len(self._parked)

    def has(self, other: object) -> bool:
        """Whether a greenlet is one of these."""
        return any(each is other for each in self.greenlets.values())

    # In the hub's greenlet

    def _on_wakeup(self) -> None:
        try:
            # One call in C: Ctrl-C may raise between any two calls of Python, and the core returns each thing only
            # once.
            self._taken.extend(iter(self.core.take, None))
            self._work()
        except BaseException:
            # The rest is done a little later, because it may fail again. gevent itself would also call `handle_error`,
            # but would never call this callback again.
            self._try_again_later()
            self.hub.handle_error(self._on_wakeup, *sys.exc_info())

    def _try_again_later(self) -> None:
        if (timer := self._timers.pop(_NO_REQUEST, None)) is not None:
            timer.close()
        if self._has_ended:
            return
        timer = self._timers[_NO_REQUEST] = self.hub.loop.timer(_AFTER_ERROR)
        timer.start(self.core.wake, update=True)

    def _work(self) -> None:
        core = self.core
        for tickets, late, leaving, ended in self._taken:
            self._tickets.extend(tickets)
            self._late.extend(late)
            self._leaving.extend(leaving)
            self._is_over = self._is_over or ended
        self._taken.clear()
        # Before the tickets: a request that waits for its client gets RequestTimeout instead if its deadline has
        # passed.
        while self._late:
            self._log_and_interrupt(self._late.popleft())
        while self._leaving:
            self._cancel(*self._leaving.popleft())
        if not self._references:
            self._count_references()
        try:
            # The core ends this loop when its slice of time is over, and wakes the hub again. The greenlets with a
            # ticket come after it, since each may compute for any time.
            while core.wants_greenlet() and (self._resume() or self._make()):
                pass
        finally:
            while self._tickets:
                # A ticket is removed after the switch, so that none is lost when the switch raises. A greenlet that
                # waits no longer is not in the table.
                waiter = _waiting.get(self._tickets[0])
                if waiter is not None:
                    waiter.switch(True)
                self._tickets.popleft()
            if self._is_over and not self._has_ended:
                self._end()

    def _resume(self) -> bool:
        """Switches to a parked greenlet that is as good as a new one, if there is one; ends the others."""
        parked = self._parked
        while parked:
            runner = parked.popitem()[0]
            if self.core.is_as_new(runner, self._references):
                runner.switch()
                return True
            runner.throw(GreenletExit)
        return False

    def _count_references(self) -> None:
        """Counts as `_resume` does, with a greenlet that has not run a request yet."""
        if not self._make(False):
            return
        parked = self._parked
        runner = parked.popitem()[0]
        for references in _REFERENCES:
            if self.core.is_as_new(runner, references):
                self._references = references
                break
        parked[runner] = None

    def _make(self, runs: bool = True) -> bool:
        """Switches to a new worker greenlet. False: the core has no runner slot for it."""
        slot = self.core.take_slot()
        if slot is None:
            return False
        runner = WorkerGreenlet(self._body, self.hub)
        self.greenlets[slot] = runner
        self.made += 1
        runner.switch(slot, runs)
        return True

    def _log_and_interrupt(self, late: Overdue) -> None:
        """A request is past its deadline: logs its stack, and raises RequestTimeout in it."""
        slot, serial, *_ = late
        runner = self.greenlets.get(slot)
        goes_on = runner is not None and self.core.is_running(slot, serial)
        if serial in self.named:
            self.named.discard(serial)
        elif goes_on and runner is not None:
            self.core.log("error", overdue.said(late, stacks.of(runner.gr_frame)))
        else:
            self.core.log("error", overdue.said(late))
        if goes_on:
            self._interrupt(slot, serial, overdue.AGAIN)

    def _interrupt(self, slot: int, serial: int, again: float) -> None:
        """Raises RequestTimeout in a request's greenlet, again and again until the request ends, with growing
        pauses."""
        timer = self._timers.pop(serial, None)
        if timer is not None:
            timer.close()
        runner = self.greenlets.get(slot)
        if runner is None or not self.core.is_running(slot, serial):
            return
        timer = self._timers[serial] = self.hub.loop.timer(again, ref=False)
        timer.start(self._interrupt, slot, serial, min(2 * again, overdue.LONGEST), update=True)
        if self.core.may_interrupt(slot, serial):
            # While this runs in the hub, every worker greenlet is suspended, so no other request can be in this one.
            runner.throw(RequestTimeout)

    def _cancel(self, slot: int, serial: int, cancels: bool) -> None:
        """The client of a request has left: has its callbacks called, and raises ClientDisconnected in it."""
        runner = self.greenlets.get(slot)
        is_cancelled = cancels and runner is not None and self.core.may_cancel(slot, serial)
        for subscription in self.core.subscriptions(slot, serial):
            # Each may wait, and the hub must not.
            gevent.spawn(subscription.run)
        if is_cancelled:
            assert runner is not None
            # As in `_interrupt`.
            runner.throw(ClientDisconnected)

    def _end(self) -> None:
        """The server has ended. Requests that are still running continue."""
        self._has_ended = True
        self._close()
        while self._parked:
            self._parked.popitem()[0].throw(GreenletExit)
        on_end, self._on_end = self._on_end, _nothing
        on_end()

    def _close(self) -> None:
        with contextlib.suppress(ValueError):
            living.remove(self)
        if all(each.hub is not self.hub for each in living):
            _ignore_switches()
        # A watcher of libuv that is closed without `stop` keeps its callback.
        self._wakeup.stop()
        self._wakeup.close()
        for timer in self._timers.values():
            timer.close()
        self._timers.clear()

    # In a worker greenlet

    def _body(self, slot: int, runs: bool) -> None:
        """From the beginning of a worker greenlet to its end. runs: it begins with requests; False: it parks first."""
        me = getcurrent()
        core, hub, parked = self.core, self.hub, self._parked
        ctrl_c = None
        try:
            while (not runs or core.run_requests(slot, me)) and len(parked) < SPARE and not self._has_ended:
                runs = True
                parked[me] = None
                while me in parked:
                    # A switch from anywhere else was meant for a request that has ended: the greenlet parks again.
                    hub.switch()
        except KeyboardInterrupt as error:
            ctrl_c = error
        except BaseException:  # thrown into a parked greenlet: it was meant for a request that is over
            pass
        finally:
            parked.pop(me, None)
            self.greenlets.pop(slot, None)
            core.give_slot_back(slot)
        interruption = ctrl_c or core.interruption()
        if interruption is not None and self.is_embedded:
            hub.handle_system_error(type(interruption), interruption)

    # In a process that the application forks

    def forget(self) -> None:
        """Closes the wakeup in this process; the parent continues to serve with its own."""
        # A hub that was destroyed has no loop.
        if self.hub.loop is not None:
            # The loop shares its epoll with the parent, and libuv would remove the wakeup from that epoll at once.
            self.hub.loop.reinit()
            self._close()


def _nothing() -> None:
    """Replaces `on_end` once it has been called, so that `on_end` does not keep its owner alive."""


def _forked() -> None:
    GreenletRunner.forked_in(getcurrent())
    for each in living[:]:
        each.forget()
    living.clear()
    _waiting.clear()


os.register_at_fork(after_in_child=_forked)
