"""A core of Python in the place of the Rust one: what `tailrace.greenlets` asks of it, and nothing of HTTP.

A request is a function that a worker greenlet calls. Everything is done on the hub's thread; a test wakes the hub by
`ask`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections import deque

from greenlet import GreenletExit


class Core:
    def __init__(self, most=10_000):
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.most = most
        self.queue = deque()
        self.running = {}
        self.raised = []
        self.told = ([], [], [], False)
        self.subscribed = {}
        self.slots = list(range(most + 8, -1, -1))
        self.requests = 0
        self.overdue_now = []
        self.logged = []
        self.ping = None
        self.is_started = self.is_forgotten = False
        self.closing = set()
        self.interrupted_by = None
        self.request_id = None

    # What a test does

    def ask(self, *requests):
        """Requests are complete."""
        self.queue.extend(requests)
        os.eventfd_write(self.wakeup, 1)

    def tell(self, *, tickets=(), overdue=(), leaving=(), ended=False):
        """Something happened on the I/O side."""
        self.told[0].extend(tickets)
        self.told[1].extend(overdue)
        self.told[2].extend(leaving)
        self.told = (*self.told[:3], ended)
        os.eventfd_write(self.wakeup, 1)

    def close(self):
        os.close(self.wakeup)

    # What tailrace.greenlets does

    def greenlet_runner(self, pause):
        self.pause = pause
        return self

    def explain_by(self, explain):
        self.explain = explain

    def stats(self):
        return {"queued": len(self.queue), "running": len(self.running)}

    def start(self):
        self.is_started = True

    def fileno(self):
        return self.wakeup

    def take(self):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wakeup)
        told, self.told = self.told, ([], [], [], False)
        return told if any(told) else None

    def wants_greenlet(self):
        return bool(self.queue) and len(self.running) < self.most

    def take_slot(self):
        return self.slots.pop() if self.slots else None

    def run_requests(self, slot, runner):
        references = sys.getrefcount(runner)
        while self.wants_greenlet():
            self.requests += 1
            request = self.queue.popleft()
            self.running[slot] = (self.requests, request)
            try:
                request()
            except GreenletExit:
                return False
            except KeyboardInterrupt as error:
                self.interrupted_by = error
                return False
            except BaseException as error:
                self.raised.append(error)
                del error
            finally:
                del self.running[slot]
            if weakref.getweakrefcount(runner) or vars(runner):
                return False
            if sys.getrefcount(runner) != references:
                return True
        return True

    def interruption(self):
        told, self.interrupted_by = self.interrupted_by, None
        return told

    def wake(self):
        os.eventfd_write(self.wakeup, 1)

    def give_slot_back(self, slot):
        self.slots.append(slot)

    def is_as_new(self, runner, references):
        return sys.getrefcount(runner) == references and not weakref.getweakrefcount(runner) and not vars(runner)

    def in_flight(self):
        return [
            {
                "id": serial,
                "request_id": self.request_id,
                "method": "GET",
                "target": f"/{request.__name__}",
                "client": "127.0.0.1:1",
                "seconds": 1.5,
                "slot": slot,
            }
            for slot, (serial, request) in self.running.items()
        ]

    def is_running(self, slot, serial):
        return self.running.get(slot, (0,))[0] == serial

    def may_interrupt(self, slot, serial):
        return self.is_running(slot, serial) and serial not in self.closing

    def may_cancel(self, slot, serial):
        return self.may_interrupt(slot, serial)

    def subscriptions(self, slot, serial):
        return self.subscribed.get((slot, serial), [])

    def overdue(self):
        return self.overdue_now

    def interrupt(self, slot, serial, runner):
        return self.may_interrupt(slot, serial) and runner.gr_frame is None

    def ping_every(self, seconds):
        self.ping = seconds

    def blocked(self, age, wakeup=0):
        return -1, 0.0

    def progress(self):
        return self.requests

    def log(self, level, text):
        self.logged.append((level, text))
