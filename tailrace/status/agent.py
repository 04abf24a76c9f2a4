"""`--haproxy-agent`: each client is told at once, in one line, how much the server can take, as HAProxy's agent-check
asks it.

The line is made from samples, which are taken while somebody asks, so that an answer needs no more than to be sent.
What a client sends (`agent-send`) is neither waited for nor read as a question; it is received, so that closing the
connection does not reset it before the client has read the line.

Thread: one of its own, in the status process.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tailrace.logs import log
from tailrace.status import capacity
from tailrace.status.snapshot import Snapshot

# From one sample to the next (seconds), while somebody asks.
INTERVAL: Final = 0.1
# Samples are taken for so long after somebody has asked (seconds): HAProxy asks every two seconds by default.
_INTEREST: Final = 10.0
# For so long after the first answer that is not `down` or `drain`, answers say `ready` (seconds).
NEW: Final = 60.0
# Clients that have their line and have not closed yet; beyond these, the oldest is closed.
MAX_CLIENTS: Final = 64
# How long a client has for that (seconds), and how often it may send something meanwhile.
_PATIENCE: Final = 1.0
_MAX_READS: Final = 16
_READ: Final = 4096
# How long to leave the queue alone when no connection can be accepted (seconds).
_PAUSE: Final = 0.05


@dataclass
class _Client:
    socket: socket.socket
    until: float
    reads: int = 0


class Agent:
    """Answers on a listening socket, until the pipe `line` can be read or is closed. take: takes a snapshot; it may
    raise OSError."""

    def __init__(self, listener: socket.socket, take: Callable[[], Snapshot], line: int) -> None:
        self._listener, self._end = listener, line
        self._take = take
        self._mean = capacity.Mean()
        self._line = b"down #starting: no worker is ready yet\n"
        self._sampled = self._asked = float("-inf")
        # When it was found ready for the first time; None: never yet.
        self._ready_at: float | None = None
        # By descriptor, the oldest first.
        self._clients: dict[int, _Client] = {}
        self._poll = select.poll()

    def start(self) -> None:
        """Starts the thread."""
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._end, select.POLLIN)
        threading.Thread(target=self._run, name="tailrace-agent", daemon=True).start()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            try:
                is_over = self._turn()
            except Exception:  # the next one must be answered all the same
                log.logger.exception("a reply of --haproxy-agent failed; please report it")
                time.sleep(_PAUSE)
        for descriptor in list(self._clients):
            self._close(descriptor)
        self._listener.close()

    def _turn(self) -> bool:
        """Waits for what comes next, and handles it. True: that was the end."""
        now = time.monotonic()
        times = [self._sampled + INTERVAL] if now < self._asked + _INTEREST else []
        times += [next(iter(self._clients.values())).until] if self._clients else []
        left = max(0.0, min(times) - now) if times else None
        events = self._poll.poll(None if left is None else int(left * 1000) + 1)
        now = time.monotonic()
        for descriptor, _ in events:
            if descriptor == self._end:
                return True
            if descriptor == self._listener.fileno():
                self._accept(now)
            elif descriptor in self._clients:
                self._receive(descriptor)
        for descriptor in [each for each, client in self._clients.items() if client.until <= now]:
            self._close(descriptor)
        if now < self._asked + _INTEREST and now >= self._sampled + INTERVAL:
            self._sample(now)
        return False

    def _accept(self, now: float) -> None:
        for _ in range(MAX_CLIENTS):
            try:
                client = self._listener.accept()[0]
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError:
                # No descriptor or no memory is left: the clients wait in the queue.
                time.sleep(_PAUSE)
                return
            self._asked = now
            if now >= self._sampled + INTERVAL:
                self._sample(now)
            self._answer(client, now)

    def _answer(self, client: socket.socket, now: float) -> None:
        client.setblocking(False)
        try:
            client.send(self._line)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            client.close()
            return
        while len(self._clients) >= MAX_CLIENTS:
            self._close(next(iter(self._clients)))
        self._clients[client.fileno()] = _Client(client, now + _PATIENCE)
        self._poll.register(client, select.POLLIN)

    def _receive(self, descriptor: int) -> None:
        client = self._clients[descriptor]
        client.reads += 1
        received = b""
        with contextlib.suppress(OSError):
            received = client.socket.recv(_READ)
        if not received or client.reads >= _MAX_READS:
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._clients.pop(descriptor).socket.close()

    def _sample(self, now: float) -> None:
        """Takes a sample, and makes the line of it; the last one stays when that fails."""
        self._sampled = now
        try:
            taken = self._take()
        except OSError:
            return
        if taken.not_ready:
            self._mean.forget()
            self._line = capacity.line(taken, 0.0, is_new=False).encode()
            return
        if self._ready_at is None:
            self._ready_at = now
        mean = self._mean.add(capacity.left(taken), now)
        self._line = capacity.line(taken, mean, is_new=now < self._ready_at + NEW).encode()
