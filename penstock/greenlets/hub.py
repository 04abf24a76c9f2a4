"""The carriers of one server: the greenlets that requests run in, and how they are switched.

The I/O side rings a bell when requests are complete, when somebody who waits may go on, or when a request is past its
deadline. `_answer` is called for it in the hub: it switches to whom that concerns, and to carriers while requests wait.
A carrier takes requests from the core as long as it is as good as a new greenlet: nobody holds it, and nothing is
stored on it. Then it parks, for the next time the bell rings. What fails that test ends, and what was stored on it goes
with it, so what is local to a greenlet is local to a request, and a quick request costs no greenlet.

`pause` is how the core waits: for room in a response, for a piece of a request's body. Its tickets are unique in the
process, so all servers and hubs share the table.

Thread: the hub's. `_answer` and the timers run in the hub's greenlet, where nothing may wait or raise; `_body` is a
carrier's whole life. The monitor's thread reads `carriers` and writes `named`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gevent import get_hub
from gevent.hub import Waiter
from greenlet import GreenletExit, getcurrent, greenlet

from penstock import RequestTimeout
from penstock.greenlets import overdue, stacks
from penstock.greenlets.monitor import Monitor

if TYPE_CHECKING:
    from penstock._penstock import Overdue, Server

READABLE: Final = 1
# Carriers that park at most; beyond them they end. One that parks takes some 20 KiB, and a new one as much time as a
# small request; thousands of clients come and go in crowds.
SPARE: Final = 1024
# References to a parked carrier are counted up from here; there is no more to know than that it ends somewhere.
_REFERENCES: Final = range(1, 64)
# Until what failed is tried again (seconds); its timer stands where no request's does.
_AFTER_ERROR: Final = 0.1
_NO_REQUEST: Final = 0

_waiting: dict[int, Waiter[bool]] = {}
living: list[Carriers] = []


class Carrier(greenlet):
    """A greenlet that carries requests. A type of its own, so that one can tell."""


def pause(ticket: int, seconds: float | None) -> bool:
    """Waits, and lets others run, until the core gives the ticket back; False when the seconds were over before.

    Called by the core in any greenlet of a hub's thread. What is thrown into the greenlet meanwhile goes through.
    """
    hub = get_hub()
    waiter: Waiter[bool] = Waiter(hub)
    _waiting[ticket] = waiter
    timer = None
    try:
        if seconds is not None:
            timer = hub.loop.timer(seconds)
            # From now, not from when the loop last looked at the clock.
            timer.start(waiter.switch, False, update=True)
        return waiter.get()
    finally:
        _waiting.pop(ticket, None)
        if timer is not None:
            timer.close()


def keep_running() -> None:
    """On this thread's hub, SystemExit ends the greenlet that raises it and nothing else, as it does in a thread.

    SystemError still ends the worker, as gevent has it: something in C is broken, and a new worker is better.
    """
    get_hub().SYSTEM_ERROR = (KeyboardInterrupt, SystemError)


class Carriers:
    """The greenlets of one server, on the hub of the calling thread.

    on_end: called in the hub when the server has ended. warn: after how long a hub that does not answer is reported
    (seconds); 0: never. is_embedded: the main greenlet is a program's, so a KeyboardInterrupt that meets a request is
    raised there, too, as gevent does where it meets other greenlets.
    """

    def __init__(self, server: Server, warn: float, on_end: Callable[[], object], *, is_embedded: bool = False) -> None:
        self.hub = get_hub()
        self.server = server
        self.core = server.hub(pause)
        self.thread = threading.get_native_id()
        # By post: all that have not ended.
        self.carriers: dict[int, Carrier] = {}
        # Numbers of requests past their deadline that the monitor has named in the log.
        self.named: set[int] = set()
        self.made = 0
        self._parked: dict[greenlet, None] = {}
        # How many references there are to a parked carrier that nobody else holds; 0: not counted yet.
        self._references = 0
        # By number of the request that is past its deadline.
        self._timers: dict[int, Any] = {}
        # What the core has told, and what of it is still to be done.
        self._told: list[tuple[list[int], list[Overdue], bool]] = []
        self._tickets: deque[int] = deque()
        self._late: deque[Overdue] = deque()
        self._is_over = False
        self._has_ended = False
        self._on_end = on_end
        self.is_embedded = is_embedded
        self._bell: Any = self.hub.loop.io(self.core.fileno(), READABLE)
        self.monitor = Monitor(self.core, self.hub.thread_ident, self.thread, self.carriers, self.named, warn)

    def start(self) -> None:
        """Begins to serve. Raises OSError."""
        self.core.start()
        living.append(self)
        self._bell.start(self._answer)
        self.monitor.start()

    @property
    def parked(self) -> int:
        """How many carriers have nothing to do."""
        return len(self._parked)

    def carries(self, other: object) -> bool:
        """Whether a greenlet is one of ours."""
        return any(carrier is other for carrier in self.carriers.values())

    # In the hub's greenlet

    def _answer(self) -> None:
        """The bell has rung."""
        try:
            # All in C: Ctrl-C may be raised between any two calls here, and what is told is told once.
            self._told.extend(iter(self.core.take, None))
            self._work_off()
        except BaseException:
            # What is left is done a little later, since it may fail again. What follows gevent would do itself, but not
            # call us again.
            self._come_back()
            self.hub.handle_error(self._answer, *sys.exc_info())

    def _come_back(self) -> None:
        if (timer := self._timers.pop(_NO_REQUEST, None)) is not None:
            timer.close()
        if self._has_ended:
            return
        timer = self._timers[_NO_REQUEST] = self.hub.loop.timer(_AFTER_ERROR)
        timer.start(self.core.ring, update=True)

    def _work_off(self) -> None:
        core = self.core
        for tickets, late, ended in self._told:
            self._tickets.extend(tickets)
            self._late.extend(late)
            self._is_over = self._is_over or ended
        self._told.clear()
        # Before the tickets: who waits for a client that is cut off at the deadline is to hear of that.
        while self._late:
            self._name_and_end(self._late.popleft())
        if not self._references:
            self._count_references()
        try:
            # The core limits the time for this, and rings again; a greenlet with a ticket may work for longer.
            while core.wants_carrier() and (self._wake() or self._make()):
                pass
        finally:
            while self._tickets:
                # It stays until it has been acted on; who waits no longer is not in the table.
                waiter = _waiting.get(self._tickets[0])
                if waiter is not None:
                    waiter.switch(True)
                self._tickets.popleft()
            if self._is_over and not self._has_ended:
                self._end()

    def _wake(self) -> bool:
        """Switches to a carrier that is parked, if one is as good as new; the others end."""
        parked = self._parked
        while parked:
            carrier = parked.popitem()[0]
            if self.core.is_as_new(carrier, self._references):
                carrier.switch()
                return True
            carrier.throw(GreenletExit)
        return False

    def _count_references(self) -> None:
        """In the words of `_wake`, with a carrier that has carried nothing yet."""
        if not self._make(False):
            return
        parked = self._parked
        carrier = parked.popitem()[0]
        for references in _REFERENCES:
            if self.core.is_as_new(carrier, references):
                self._references = references
                break
        parked[carrier] = None

    def _make(self, carries: bool = True) -> bool:
        """Switches to a new carrier. False: the core has no post for it."""
        post = self.core.join()
        if post is None:
            return False
        carrier = Carrier(self._body, self.hub)
        self.carriers[post] = carrier
        self.made += 1
        carrier.switch(post, carries)
        return True

    def _name_and_end(self, late: Overdue) -> None:
        """A request is past its deadline: says where it is, and raises the exception there."""
        post, serial, *_ = late
        carrier = self.carriers.get(post)
        goes_on = carrier is not None and self.core.is_carrying(post, serial)
        if serial in self.named:
            self.named.discard(serial)
        elif goes_on and carrier is not None:
            self.core.log("error", overdue.said(late, stacks.of(carrier.gr_frame)))
        else:
            self.core.log("error", overdue.said(late))
        if goes_on:
            self._interrupt(post, serial, overdue.AGAIN)

    def _interrupt(self, post: int, serial: int, again: float) -> None:
        """Raises the exception in a request's greenlet, as long as it is there, less and less often."""
        timer = self._timers.pop(serial, None)
        if timer is not None:
            timer.close()
        carrier = self.carriers.get(post)
        if carrier is None or not self.core.is_carrying(post, serial):
            return
        timer = self._timers[serial] = self.hub.loop.timer(again, ref=False)
        timer.start(self._interrupt, post, serial, min(2 * again, overdue.LONGEST), update=True)
        if self.core.may_interrupt(post, serial):
            # From here every carrier is suspended, so this reaches that request alone.
            carrier.throw(RequestTimeout)

    def _end(self) -> None:
        """The server has ended; requests that go on may still do so."""
        self._has_ended = True
        self._close()
        while self._parked:
            self._parked.popitem()[0].throw(GreenletExit)
        on_end, self._on_end = self._on_end, _nothing
        on_end()

    def _close(self) -> None:
        with contextlib.suppress(ValueError):
            living.remove(self)
        # One of libuv keeps its callback when it is only closed.
        self._bell.stop()
        self._bell.close()
        for timer in self._timers.values():
            timer.close()
        self._timers.clear()

    # In a carrier

    def _body(self, post: int, carries: bool) -> None:
        """A carrier's life. carries: it begins with requests, and not in the park."""
        me = getcurrent()
        core, hub, parked = self.core, self.hub, self._parked
        ctrl_c = None
        try:
            while (not carries or core.carry(post, me)) and len(parked) < SPARE and not self._has_ended:
                carries = True
                parked[me] = None
                while me in parked:
                    # Whoever else switches to it, for a request that is over, meets nobody.
                    hub.switch()
        except KeyboardInterrupt as error:
            ctrl_c = error
        except BaseException:  # likewise, if it was thrown: there is no request that it could be meant for
            pass
        finally:
            parked.pop(me, None)
            self.carriers.pop(post, None)
            core.leave(post)
        interruption = ctrl_c or core.interruption()
        if interruption is not None and self.is_embedded:
            hub.handle_system_error(type(interruption), interruption)

    # In a process that the application forks

    def forget(self) -> None:
        """The bell is shared with the process that goes on serving, which would sleep if it were silenced here."""
        self.core.forget()
        # A hub that was destroyed has none.
        if self.hub.loop is not None:
            # The loop's epoll is shared, too, and one of libuv takes the bell out of it at once.
            self.hub.loop.reinit()
            self._close()


def _nothing() -> None:
    """In the place of what has been called, and would keep its owner."""


def _forked() -> None:
    for each in living[:]:
        each.forget()
    living.clear()
    _waiting.clear()


os.register_at_fork(after_in_child=_forked)
