"""A core of Python in the place of the Rust one: what `penstock.greenlets` asks of it, and nothing of HTTP.

A request is a function that a carrier calls. Everything is done on the hub's thread; a test rings by `ask`.
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
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.most = most
        self.queue = deque()
        self.running = {}
        self.raised = []
        self.told = ([], [], False)
        self.posts = list(range(most + 8, -1, -1))
        self.requests = 0
        self.overdue_now = []
        self.logged = []
        self.ping = None
        self.is_started = self.is_forgotten = False
        self.closing = set()
        self.interrupted_by = None

    # What a test does

    def ask(self, *requests):
        """Requests are complete."""
        self.queue.extend(requests)
        os.eventfd_write(self.bell, 1)

    def tell(self, *, tickets=(), overdue=(), ended=False):
        """Something happened on the I/O side."""
        self.told[0].extend(tickets)
        self.told[1].extend(overdue)
        self.told = (self.told[0], self.told[1], ended)
        os.eventfd_write(self.bell, 1)

    def close(self):
        os.close(self.bell)

    # What penstock.greenlets does

    def hub(self, pause):
        self.pause = pause
        return self

    def stats(self):
        return {"queued": len(self.queue), "running": len(self.running)}

    def start(self):
        self.is_started = True

    def fileno(self):
        return self.bell

    def take(self):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)
        told, self.told = self.told, ([], [], False)
        return told if any(told) else None

    def wants_carrier(self):
        return bool(self.queue) and len(self.running) < self.most

    def join(self):
        return self.posts.pop() if self.posts else None

    def carry(self, post, carrier):
        references = sys.getrefcount(carrier)
        while self.wants_carrier():
            self.requests += 1
            request = self.queue.popleft()
            self.running[post] = (self.requests, request)
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
                del self.running[post]
            if weakref.getweakrefcount(carrier) or vars(carrier):
                return False
            if sys.getrefcount(carrier) != references:
                return True
        return True

    def interruption(self):
        told, self.interrupted_by = self.interrupted_by, None
        return told

    def ring(self):
        os.eventfd_write(self.bell, 1)

    def leave(self, post):
        self.posts.append(post)

    def is_as_new(self, carrier, references):
        return sys.getrefcount(carrier) == references and not weakref.getweakrefcount(carrier) and not vars(carrier)

    def in_flight(self):
        return [
            {
                "id": serial,
                "method": "GET",
                "target": f"/{request.__name__}",
                "client": "127.0.0.1:1",
                "seconds": 1.5,
                "post": post,
            }
            for post, (serial, request) in self.running.items()
        ]

    def is_carrying(self, post, serial):
        return self.running.get(post, (0,))[0] == serial

    def may_interrupt(self, post, serial):
        return self.is_carrying(post, serial) and serial not in self.closing

    def overdue(self):
        return self.overdue_now

    def interrupt(self, post, serial, carrier):
        return self.may_interrupt(post, serial) and carrier.gr_frame is None

    def ping_every(self, seconds):
        self.ping = seconds

    def blocked(self, age, ring=0):
        return -1, 0.0

    def progress(self):
        return self.requests

    def log(self, level, text):
        self.logged.append((level, text))

    def forget(self):
        self.is_forgotten = True
